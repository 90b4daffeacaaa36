"""Progress as bars on a terminal, which disappear when the work is done: the whole, and the step that runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from fsd_common.console import LiteralConsole, literal
from fsd_common.progress.drawn import Drawn, Seen

_REFRESHES = 5  # a second


class Bars(Drawn):
    """Shows the bar, the best result so far below it, and the innermost step. Nothing stays on the screen but notes."""

    def __init__(self, console: Console | None = None) -> None:
        super().__init__()
        self._console = console or LiteralConsole(stderr=True)
        self._shown: Live | None = None

    def note(self, line: str) -> None:
        self._console.print(literal(" ".join(line.split())))

    def __rich__(self) -> RenderableType:
        """What is on the screen now."""
        seen = self.seen()
        if seen is None:
            return Group()
        best = [_line(seen.best)] if seen.best else []
        step = [_line(seen.step, "dim")] if seen.step else []
        return Group(_bar(seen), *best, *step)

    @contextmanager
    def _display(self) -> Iterator[None]:
        if self._shown is not None:
            yield
            return
        with Live(
            self, console=self._console, transient=True, refresh_per_second=_REFRESHES, redirect_stdout=False
        ) as self._shown:
            try:
                yield
            finally:
                self._shown = None


def _bar(seen: Seen) -> RenderableType:
    """Returns a line: what is done, a bar, the share, the time gone and left."""
    grid = Table.grid(
        Column(max_width=20, no_wrap=True, overflow="ellipsis"), Column(width=24), Column(width=4, justify="right"),
        Column(justify="right", no_wrap=True), Column(no_wrap=True), padding=(0, 1),
    )  # fmt: skip
    bar = ProgressBar(total=seen.total, completed=seen.done, pulse=seen.total is None, width=24)
    share = "" if seen.share is None else f"{seen.share:.0%}"
    grid.add_row(literal(seen.title, "bold"), bar, share, seen.gone, literal(seen.left))
    return grid


def _line(text: str, style: str = "") -> Text:
    shown = literal(text, style)
    shown.no_wrap, shown.overflow = True, "ellipsis"
    return shown
