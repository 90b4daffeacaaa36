"""Options of what a command prints, which all commands that take long have."""

from __future__ import annotations

import logging
import math
import os
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from fsd_calib.cli.completion import one_of
from fsd_calib.cli.console import reply
from fsd_calib.cli.groups import OptionGroup
from fsd_calib.cli.options import VersionOption
from fsd_common.errors import UsageError
from fsd_common.progress.base import Progress

OUTPUT = "Output"
LEVELS = ("debug", "info", "warning", "error")
JSON_VERSION = 1
"""Of what --json prints; a new one where a reader of the old would break."""

_LIBRARIES = ("TRANSFORMERS_VERBOSITY", "DATASETS_VERBOSITY", "HF_HUB_VERBOSITY")  # read as they are imported
_LIBRARIES_IN_CAPITALS = ("VLLM_LOGGING_LEVEL",)


@dataclass(frozen=True)
class OutputOptions(OptionGroup):
    """What is printed."""

    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet", "-q", help="Print no progress and no notes on stderr; warnings and errors stay.",
            rich_help_panel=OUTPUT,
        ),
    ] = False  # fmt: skip
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print the result on stdout as one JSON object, for programs, and nothing else there.",
            rich_help_panel=OUTPUT,
        ),
    ] = False  # fmt: skip
    log_level: Annotated[
        str | None,
        typer.Option(
            help=f"What libraries log on stderr: {', '.join(LEVELS)}. error also hides warnings. By default warning.",
            rich_help_panel=OUTPUT,
            autocompletion=one_of(LEVELS),
        ),
    ] = None
    version: VersionOption = False

    def begin(self) -> Progress:
        """Sets what is logged, and returns the display of progress on stderr.

        Call it before libraries are imported.

        Raises:
            UsageError: the level is unknown.
        """
        from fsd_common.progress.chosen import stderr_progress

        if self.log_level is not None:
            _log(self.log_level)
        return stderr_progress(self.quiet)


def reply_json(command: str, result: Any) -> None:
    """Prints a result on stdout as one JSON object (docs/commands.md describes it).

    Args:
        command: its name.
        result: lists, dicts, strings and numbers. Numbers that JSON cannot hold become null, and other values, such as
            paths, strings.
    """
    import json

    from fsd_calib import __version__

    envelope = {"json_version": JSON_VERSION, "command": command, "version": __version__, "result": _finite(result)}
    reply(json.dumps(envelope, indent=2, ensure_ascii=False, default=str, allow_nan=False))


def _finite(value: Any) -> Any:
    """The same, with None for what is infinite or no number."""
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _log(level: str) -> None:
    """Makes libraries log from this level on, here and in the processes that are started."""
    if level not in LEVELS:
        raise UsageError(f"--log-level is {level!r}; it must be one of {', '.join(LEVELS)}")
    os.environ.update(dict.fromkeys(_LIBRARIES, level))
    os.environ.update(dict.fromkeys(_LIBRARIES_IN_CAPITALS, level.upper()))
    logging.root.setLevel(level.upper())
    logging.basicConfig(stream=sys.stderr, format="%(name)s: %(levelname)s: %(message)s")
    if level == "error":
        warnings.simplefilter("ignore")
