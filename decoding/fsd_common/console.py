"""Printing with rich: every text is shown literally, without markup and without control characters."""

from __future__ import annotations

import re
from typing import Any, NoReturn

from rich.console import Console
from rich.text import Text

from fsd_common.terminal import leave_closed_pipe, visible

TITLE = "table.title"  # the style that rich gives to titles which are plain strings


class LiteralConsole(Console):
    """A console that takes brackets and colons in plain strings literally. Pass it texts made by `literal`.

    Raises:
        OSError: stdout cannot be written; it is named. Failures of stderr are ignored: notes must not end long work.
        SystemExit: the reader of the pipe has gone.
    """

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False, emoji=False, highlight=False)

    def print(self, *objects: Any, **options: Any) -> None:
        try:
            super().print(*objects, **options)
        except OSError as error:
            if not self.stderr:
                raise OSError(error.errno, error.strerror, "stdout") from error

    def on_broken_pipe(self) -> NoReturn:
        leave_closed_pipe(self.file)


def breakable(name: str, width: int) -> str:
    """Returns a name, such as a path, with line breaks after `/`, `.`, `-` and `_`, where it is longer than `width`.

    Tables otherwise cut it or break it anywhere.
    """
    lines = [""]
    for piece in re.split(r"(?<=[/._-])(?=.)", name):
        if lines[-1] and len(lines[-1]) + len(piece) > width:
            lines.append("")
        lines[-1] += piece
    return "\n".join(lines)


def literal(text: str, style: str = "") -> Text:
    """Returns a text for tables and consoles in which brackets are no markup and control characters are visible."""
    return Text(visible(text), style)
