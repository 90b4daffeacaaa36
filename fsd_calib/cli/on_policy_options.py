"""The options of `fsd-collect` for traces of a rule, in place of those along the target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from fsd_calib.cli.choices import DIVERGENCES, RULES
from fsd_calib.cli.completion import one_of
from fsd_calib.cli.groups import OptionGroup

_POLICY = "On-policy only"


@dataclass(frozen=True)
class PolicyOptions(OptionGroup):
    """The rule that texts are decoded with, in place of the target's own."""

    rule: Annotated[
        str | None,
        typer.Option(
            help=f"Collect on-policy, with this acceptance rule: {', '.join(RULES[:-1])} or {RULES[-1]}. By default, "
            "traces are collected along the target.",
            rich_help_panel=_POLICY,
            autocompletion=one_of(RULES),
        ),
    ] = None
    threshold: Annotated[
        float | None,
        typer.Option(help="The rule's threshold. inf with --rule fsd accepts every token.", rich_help_panel=_POLICY),
    ] = None
    divergence: Annotated[
        str | None,
        typer.Option(
            help="The divergence that the threshold bounds. By default js; all divergences are recorded either way.",
            rich_help_panel=_POLICY,
            autocompletion=one_of(DIVERGENCES),
        ),
    ] = None
    draft_length: Annotated[
        int | None, typer.Option(help="Tokens drafted per round. By default 5.", rich_help_panel=_POLICY)
    ] = None
