"""The options of `fsd-calibrate` on what is searched, and on the run and its files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from fsd_calib.calibration.run_config import Compiling
from fsd_calib.cli.choices import DIVERGENCES, ENGINES, POLICIES, RULES_WITH_T
from fsd_calib.cli.completion import one_of, several_of
from fsd_calib.cli.groups import OptionGroup
from fsd_calib.cli.loading_options import json_object
from fsd_calib.cli.options import DATA, DECODING, several, whole_numbers


@dataclass(frozen=True)
class FileOptions(OptionGroup):
    """Where files are."""

    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for profile.json and the measurements. By default fsd-profile/TASK, with -vllm, -certified or "
            "-explored behind it for --engine vllm, --certify and --explore, and with models and goal where that "
            "folder is another run's.",
            rich_help_panel=DATA,
        ),
    ] = None
    replace: Annotated[
        bool,
        typer.Option(
            "--replace",
            help="Write over the profile of another run in --out. Only a certified one replaces a certified one.",
            rich_help_panel=DATA,
        ),
    ] = False
    cache: Annotated[
        Path | None,
        typer.Option(
            help="Folder for cached decodings and traces, shared by all runs. By default $FSD_CALIB_CACHE, else "
            "~/.cache/fsd-calib.",
            rich_help_panel=DATA,
        ),
    ] = None
    state: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the ledger of attempts, which must not be deleted; machines that work on the same "
            "problems should share it. By default $FSD_CALIB_STATE, else the user's state folder, on Linux "
            "~/.local/state/fsd-calib.",
            rich_help_panel=DATA,
        ),
    ] = None
    storage: Annotated[
        str | None,
        typer.Option(
            help="Optuna storage for the search: a file, or a URL (postgresql://…) that several processes can share. "
            "By default study.log in the output folder.",
            rich_help_panel=DATA,
        ),
    ] = None
    show_prompt: Annotated[
        bool, typer.Option("--show-prompt", help="Print the first prompt and exit.", rich_help_panel=DATA)
    ] = False


@dataclass(frozen=True)
class SearchOptions(OptionGroup):
    """What the search chooses among."""

    rule: Annotated[
        str,
        typer.Option(
            help=f"Acceptance rule: {', '.join(RULES_WITH_T)}, or several, separated by commas.",
            rich_help_panel=DECODING,
            autocompletion=several_of(RULES_WITH_T),
        ),
    ] = "fsd-coupled"
    divergence: Annotated[
        str,
        typer.Option(
            help=f"Divergence between the two models that the threshold bounds: {', '.join(DIVERGENCES)}, or several, "
            "separated by commas. js@50 uses only the target's 50 likeliest tokens and one bucket for the rest.",
            rich_help_panel=DECODING,
            autocompletion=several_of(DIVERGENCES),
        ),
    ] = "js,doubt"
    threshold_policy: Annotated[
        list[str] | None,
        typer.Option(
            "--threshold-policy",
            help="How T changes over a text: constant (the default), schedule (stricter at the beginning, or towards "
            "the end), entropy (looser where the target is unsure), per-prompt (predicted from the prompt and the "
            "draft's first token; learned on the tuning part, even with --plan), or several, separated by commas or by "
            "repeating the option. Each policy has a handful of shapes; how loose a shape may be is searched and "
            "certified like a constant T.",
            rich_help_panel=DECODING,
            metavar="<str>",
            autocompletion=several_of(POLICIES),
        ),
    ] = None
    draft_length: Annotated[
        str | None,
        typer.Option(
            help="Tokens drafted per round: a number such as 5, or several to search over, such as 2-8 or 4,6,8. By "
            "default 1-12, or at most 16 with --predictor.",
            rich_help_panel=DECODING,
        ),
    ] = None
    tree: Annotated[
        list[str] | None,
        typer.Option(
            help="Draft trees of this shape: TOP_K,NODES, such as 2,6 for six nodes a round, each with up to two "
            "children; the draft length is their depth. Repeat it to choose among shapes, and give chain to choose "
            "among chains too. By default chain.",
            rich_help_panel=DECODING,
            metavar="<str>",
        ),
    ] = None
    predictor: Annotated[
        Path | None,
        typer.Option(
            help="Folder of a predictor from fsd-train-predictor, which ends drafts early; auto trains one on the "
            "tuning part.",
            rich_help_panel=DECODING,
        ),
    ] = None

    def fields_of_decoding(self, policies: tuple[str, ...]) -> dict[str, Any]:
        """Returns the fields of `DecodingConfig` by the names of the options that set them.

        Args:
            policies: the threshold policies, see `policies_named`.

        Raises:
            UsageError: an option is malformed.
        """
        lengths = None if self.draft_length is None else whole_numbers("--draft-length", self.draft_length)
        return {
            "rule": several("--rule", self.rule), "divergence": several("--divergence", self.divergence),
            "threshold_policy": policies, "draft_length": lengths, "predictor": self.predictor,
            "tree": self.tree,
        }  # fmt: skip


@dataclass(frozen=True)
class RunOptions(OptionGroup):
    """How much is decoded at once, and by what."""

    seeds: Annotated[
        int,
        typer.Option(
            help="Noise seeds to decode each problem with when the temperature is above 0.", rich_help_panel=DECODING
        ),
    ] = 1
    batch_size: Annotated[
        int | None,
        typer.Option(
            help="Problems decoded at once while calibrating. By default as many as fit in memory, at most 32.",
            rich_help_panel=DECODING,
        ),
    ] = None
    compile: Annotated[
        str,
        typer.Option(
            help="How rounds are called in all that is decoded and timed. off: directly. capture: as graphs, which "
            "removes Python and keeps the texts. on: as graphs of compiled kernels, which round differently. auto: "
            "capture, where that saves more time within the planned work than it takes.",
            rich_help_panel=DECODING,
            autocompletion=one_of(get_args(Compiling)),
        ),
    ] = "auto"
    engine: Annotated[
        str,
        typer.Option(
            help="What decodes, times and is certified: fsd-calib, our own engine, or vllm, for profiles that vLLM "
            "serves (needs vLLM in this environment). With --certify also fsd-calib,vllm: the second is tested once "
            "the first has passed, in the same attempt, and each has a profile in a folder of its name in --out.",
            rich_help_panel=DECODING,
            autocompletion=several_of(ENGINES),
        ),
    ] = "fsd-calib"
    engine_args: Annotated[
        str | None,
        typer.Option(
            help="Arguments of vLLM's engine, as JSON: '{\"tensor_parallel_size\": 4}'.",
            rich_help_panel=DECODING,
        ),
    ] = None

    def fields_of_run(self) -> dict[str, Any]:
        """Returns the fields of `RunConfig` by the names of the options that set them; `engine` may be several."""
        arguments = None if self.engine_args is None else json_object("--engine-args", self.engine_args)
        return {
            "seeds": self.seeds, "batch_size": self.batch_size, "compile": self.compile,
            "engine": several("--engine", self.engine), "engine_args": arguments,
        }  # fmt: skip
