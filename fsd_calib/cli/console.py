"""What commands print, and how they end: results, progress, error lines and exit codes.

An error is one line on stderr and an exit code, never a traceback, and so is a failure that no program can prevent: a
full disk, too little memory, a file out of reach.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import math
import os
import re
import signal
import sys
import tempfile
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from fsd_common.errors import UsageError
from fsd_common.interrupts import noticed
from fsd_common.terminal import discard, leave_closed_pipe, say_on, visible

if TYPE_CHECKING:
    from fsd_common.progress.base import Progress
    from fsd_decoding.decoder import SpeculativeDecoder

FOUND, BAD_INPUT, NOT_MET, INTERRUPTED = 0, 2, 3, 130
JSON_VERSION = 1
"""The version of what --json prints; a new one where a reader of the old would break."""

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NO_SPACE = re.compile(r"no space left on device|disk quota exceeded|file too large|database or disk is full", re.I)
_NO_MEMORY = re.compile(
    r"can't allocate memory|cannot allocate memory|out of memory|bad_alloc|failed to map segment|_ALLOC_FAILED"
    r"|can't start new thread",
    re.I,
)


_called = "fsd"


def called_as(name: str) -> None:
    """Says by what name the command was called, with which its lines on stderr begin."""
    global _called
    _called = name


class RunInterruptedError(Exception):
    """Raised on Ctrl-C, with what the user should know about the work so far."""


@contextlib.contextmanager
def interruptible(kept: Callable[[], str]) -> Iterator[None]:
    """Inside, Ctrl-C ends the command with what `kept` returns, what the user should know about the work so far.

    An error that follows Ctrl-C counts as the interruption: a library whose import or callback is cut off may raise an
    error of its own in place of KeyboardInterrupt.

    Raises:
        RunInterruptedError: there was a Ctrl-C.
    """
    with noticed() as came:
        try:
            yield
        except BaseException as error:
            if came() or isinstance(error, KeyboardInterrupt):
                raise RunInterruptedError(kept()) from error
            raise


def quiet_libraries() -> None:
    """Disables huggingface_hub's warnings at every try, which the command's error says once.

    They stay if HF_HUB_VERBOSITY is set.
    """
    if "HF_HUB_VERBOSITY" not in os.environ:
        from huggingface_hub.utils.logging import set_verbosity_error

        set_verbosity_error()  # type: ignore[no-untyped-call]


def load_libraries(progress: Progress, *more: str) -> None:
    """Imports what takes seconds, so that these seconds are shown; see `quiet_libraries`. `more`: modules."""
    with progress.step("loading libraries", 0):
        import torch
        import transformers  # noqa: F401

        torch.empty(0)
        for name in more:
            import_module(name)
        quiet_libraries()


def say(message: str) -> None:
    """Prints the message as one line on stderr, whatever line breaks and control characters it has."""
    line = f"{_called}: {visible(' '.join(message.split()))}"
    if sys.stderr is not None and sys.stderr.isatty():  # which would break it within words
        width = os.get_terminal_size(sys.stderr.fileno()).columns or 80
        line = textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)
    say_on(sys.stderr, line)


def reply(text: str) -> None:
    """Prints a result on stdout: on a terminal with visible control characters, into a file or a pipe exactly."""
    try:
        print(visible(text) if sys.stdout is not None and sys.stdout.isatty() else text, flush=True)
    except BrokenPipeError:
        leave_closed_pipe(sys.stdout)
    except OSError as error:
        raise OSError(error.errno, error.strerror, "stdout") from error


def leave(app: typer.Typer, name: str) -> NoReturn:
    """Runs the app on the process's arguments and exits; warnings are printed as lines of the command."""
    warnings.showwarning = lambda message, *_, **__: say(f"warning: {message}")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a character that its encoding lacks is no failure
    try:
        code = _flushed(run(app, name))
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is done: the interpreter's own end is not interrupted
    except KeyboardInterrupt:
        say("interrupted")
        code = INTERRUPTED
    sys.exit(code)


def _flushed(code: int) -> int:
    """Writes what stdout still holds, and returns the exit code."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        leave_closed_pipe(sys.stdout)
    except OSError as error:
        discard(sys.stdout)
        if code == FOUND:
            say(f"error: {explanation(OSError(error.errno, error.strerror, 'stdout'))}")
            return BAD_INPUT
    return code


def run(app: typer.Typer, name: str, arguments: Sequence[str] | None = None) -> int:
    """Runs an app on `arguments` (None: the process's own) and returns its exit code."""
    called_as(name)
    with noticed() as came:
        try:
            for argument in arguments or ():
                if "\0" in argument:  # which the system takes as the end of a path
                    raise UsageError(f"argument {argument!r} holds a null character; leave it out")
            code = app(arguments, prog_name=name, standalone_mode=False)
        except RunInterruptedError as reason:
            say(f"interrupted; {reason}")
            return INTERRUPTED
        except Exception as error:
            if not came():
                return _failed(error)
            code = INTERRUPTED  # of which a library that was being imported may have made that error
    if code == INTERRUPTED:  # what typer returns on Ctrl-C
        say("interrupted")
    return int(code or FOUND)


def _failed(error: Exception) -> int:
    """Says in a line why a command failed, and returns its exit code. An error that nobody explains is raised again."""
    if type(error).__name__ == "NoArgsIsHelpError":  # a group without a command
        typer.echo(error.format_message())  # type: ignore[attr-defined]
        say("error: a command is missing")
        return BAD_INPUT
    if isinstance(error, typer.TyperException):
        message = error.format_message().rstrip(".")
        context = getattr(error, "ctx", None)  # knows which of a group's commands it was
        say(f"error: {message} (see {context.command_path if context else _called} --help)")
        return error.exit_code
    known = str(error) if isinstance(error, UsageError) else explanation(error)
    if known is None:
        raise error
    say(f"error: {known}")
    return BAD_INPUT


def announce(decoder: SpeculativeDecoder, *, quiet: bool) -> None:
    """Says what a decoder follows, unless quiet, in place of its own log."""
    line = decoder.announcement()
    if line is not None and not quiet:
        say(line)


def check_writable(folder: Path, earlier: Sequence[str]) -> None:
    """Raises UsageError where the folder, or a file of an earlier run in it, cannot be written.

    It tries, with a temporary file: permission bits alone do not tell. What it makes it removes.
    """
    try:
        missing = [each for each in (folder, *folder.parents) if not each.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        for name in earlier:
            if (folder / name).exists():
                (folder / name).open("r+b").close()
        with contextlib.suppress(OSError):  # another process may have written to it meanwhile
            for each in missing:
                each.rmdir()
    except OSError as error:
        raise UsageError(f"--out {str(folder)!r} cannot be written: {error.strerror}; choose another folder") from error


def reply_json(command: str, result: Any) -> None:
    """Prints a result on stdout as one JSON object (docs/commands.md describes it).

    Args:
        command: its name.
        result: lists, dicts, strings and numbers. Numbers that JSON cannot hold become null, and other values, such as
            paths, strings.
    """
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


def explanation(error: BaseException) -> str | None:
    """Returns what happened and the way out; None: the error is of another kind, a fault of the program."""
    chain = list(_chain(error))
    if full := next(filter(_is_full, chain), None):
        why = (full.strerror if isinstance(full, OSError) else None) or _NO_SPACE.search(str(full))[0]  # type: ignore[index]
        return f"{_place(full)} cannot be written: {why}; free space, and run the same command again"
    if any(map(_lacks_memory, chain)):
        lines = str(error).strip().splitlines()
        detail = f" ({lines[0].strip()[:120]})" if lines else ""
        return (
            f"out of memory{detail}; free memory or give less work at once (--batch-size, --limit, smaller models), "
            "and run the same command again"
        )
    if isinstance(error, OSError):
        why = error.strerror or str(error) or type(error).__name__
        return f"{_place(error)} cannot be used: {why}; repair or free it, or give another path"
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yields the error and those that led to it; libraries wrap the system's errors in their own."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _is_full(error: BaseException) -> bool:
    return (isinstance(error, OSError) and error.errno in _FULL) or bool(_NO_SPACE.search(str(error)))


def _lacks_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    return isinstance(error, RuntimeError | ImportError | OSError) and bool(_NO_MEMORY.search(str(error)))


def _place(error: BaseException) -> str:
    name = error.filename if isinstance(error, OSError) else None
    return repr(os.fsdecode(name)) if isinstance(name, str | bytes) else "a file or stdout"
