"""What a command prints: results as text or JSON, progress, and what libraries log."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fsd_calib.cli.console import reply, reply_json
from fsd_calib.cli.family import OptionGroup, VersionOption, one_of
from fsd_common.errors import UsageError

if TYPE_CHECKING:
    from fsd_common.progress.base import Progress

OUTPUT = "Output"
"""The panel of `--help`."""
LEVELS = ("debug", "info", "warning", "error")
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
            metavar="|".join(LEVELS),
            autocompletion=one_of(LEVELS),
        ),
    ] = None
    version: VersionOption = False

    def reply(self, command: str, result: Any, text: str) -> None:
        """Prints a result on stdout: for programs, or as text."""
        reply_json(command, result) if self.as_json else reply(text)

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
