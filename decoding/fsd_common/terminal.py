"""Printing text from elsewhere (data, file names, model ids): control characters become visible escapes."""

from __future__ import annotations

import contextlib
import os
import re
from typing import IO, NoReturn

PIPE_CLOSED = 141  # exit code of a command whose reader has gone: 128 + SIGPIPE

_ACTING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and newline, DEL and C1: they move the cursor, or begin a command
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # these reorder the characters around them
    "\u2028\u2029"  # line and paragraph separators
    "\ud800-\udfff]"  # half characters, which cannot be encoded; in file names they stand for bytes
)


def visible(text: str) -> str:
    """Returns the text with Python's escapes (`\\x1b`, `\\u202e`) for characters that act on a terminal.

    Tabs and newlines stay. Text without such characters is returned as it is.
    """
    return _ACTING.sub(lambda found: ascii(found[0])[1:-1], text)


def say_on(stream: IO[str] | None, line: str) -> None:
    """Prints a line that work must not depend on: where it cannot be written, as to a pipe that nobody reads any more
    or on a full disk, it is dropped.

    Args:
        stream: such as sys.stderr; None: it is closed.
    """
    if stream is None:
        return
    try:
        print(line, file=stream, flush=True)
    except BrokenPipeError:
        discard(stream)
    except OSError:  # the disk may have room for the next line
        pass


def leave_closed_pipe(stream: IO[str]) -> NoReturn:
    """Ends the process without a word, as a command does whose output nobody reads any more (`… | head`)."""
    discard(stream)
    raise SystemExit(PIPE_CLOSED)


def discard(stream: IO[str]) -> None:
    """Discards what the stream still holds, which could not be written and would be tried again at exit."""
    with contextlib.suppress(OSError, ValueError):  # ValueError: it is closed, or has no descriptor
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
