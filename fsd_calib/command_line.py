"""What the commands share: an error is one line on stderr and an exit code, never a traceback.

Knows exit codes and typer. Knows neither command.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import NoReturn

import typer

from fsd_decoding.errors import UsageError

FOUND, BAD_INPUT, NOT_MET, INTERRUPTED = 0, 2, 3, 130


class RunInterruptedError(Exception):
    """Ctrl-C, and what the user should know of the work so far."""


def quiet_transformers() -> None:
    """Its bars for loading weights would stand between a command's own lines; those of downloads, which take
    minutes, stay. Imports transformers."""
    from huggingface_hub.utils.tqdm import enable_progress_bars
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    enable_progress_bars()


def say(name: str, message: str) -> None:
    """One line on stderr, whatever line breaks the message has."""
    print(f"{name}: {' '.join(message.split())}", file=sys.stderr)


def leave(app: typer.Typer, name: str) -> NoReturn:
    """Runs the process's own arguments and exits; warnings become lines of the command's own."""
    warnings.showwarning = lambda message, *_, **__: say(name, f"warning: {message}")
    sys.exit(run(app, name))


def run(app: typer.Typer, name: str, arguments: Sequence[str] | None = None) -> int:
    """Runs a one-command app on `arguments` (None: the process's own) and returns its exit code."""
    try:
        code = app(arguments, prog_name=name, standalone_mode=False)
    except UsageError as error:
        say(name, f"error: {error}")
        return BAD_INPUT
    except typer.TyperException as error:
        say(name, f"error: {error.format_message().rstrip('.')} (see {name} --help)")
        return error.exit_code
    except RunInterruptedError as reason:
        say(name, f"interrupted; {reason}")
        return INTERRUPTED
    if code == INTERRUPTED:  # typer's own answer to Ctrl-C
        say(name, "interrupted")
    return int(code or FOUND)
