"""Progress as bars on a terminal, which disappear when the work is done: the whole, and the step that runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from fsd_common.console import LiteralConsole, literal
from fsd_common.formatting import clock
from fsd_common.progress.base import Advance, ProgressEstimate, RunningStep

_REFRESHES = 5  # a second


class Bars:
    """Shows one bar for the whole work, the best result so far beside it, and the innermost step below.

    Where nothing tells of the whole, the outermost step is that bar. Nothing stays on the screen but notes.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or LiteralConsole(stderr=True)
        self._steps: list[RunningStep] = []
        self._estimate: ProgressEstimate | None = None
        self._shown: Live | None = None

    @contextmanager
    def whole(self, estimate: ProgressEstimate) -> Iterator[None]:
        self._estimate = estimate
        try:
            with self._display():
                yield
        finally:
            self._estimate = None
        self.note(estimate.summary)

    @contextmanager
    def step(self, title: str, total: int) -> Iterator[Advance]:
        step = RunningStep(title, total)
        self._steps.append(step)
        try:
            with self._display():
                yield step.advance
        finally:
            self._steps.remove(step)

    def note(self, line: str) -> None:
        self._console.print(literal(" ".join(line.split())))

    def __rich__(self) -> RenderableType:
        """What is on the screen now."""
        steps, estimate = list(self._steps), self._estimate  # which another thread draws
        rows: list[RenderableType] = []
        if estimate is not None:
            left = estimate.left
            total = None if left is None else estimate.elapsed + left
            rows.append(_bar(estimate.stage, estimate.elapsed, total, clock(estimate.elapsed), estimate.left_in_words))
            rows += [_line(estimate.best)] if estimate.best else []
        elif steps:
            first, *steps = steps
            gone = clock(time.monotonic() - first.started)
            rows.append(_bar(first.title, first.done, first.total or None, gone, first.left_in_words))
        known = estimate is None or estimate.left is not None
        rows += [_line(one.state if known else one.state_and_left, "dim") for one in steps[-1:]]
        return Group(*rows)

    @contextmanager
    def _display(self) -> Iterator[None]:
        """Draws while inside; of nested ones the outermost does."""
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


def _bar(title: str, done: float, total: float | None, gone: str, left: str) -> RenderableType:
    """Returns a line: what is done, a bar, the share, the time gone and left. `total` None: nobody knows it."""
    grid = Table.grid(
        Column(max_width=20, no_wrap=True, overflow="ellipsis"), Column(width=24), Column(width=4, justify="right"),
        Column(justify="right", no_wrap=True), Column(no_wrap=True), padding=(0, 1),
    )  # fmt: skip
    bar = ProgressBar(total=total, completed=done, pulse=total is None, width=24)
    share = "" if not total else f"{min(done / total, 1):.0%}"
    grid.add_row(literal(title, "bold"), bar, share, gone, literal(left))
    return grid


def _line(text: str, style: str = "") -> Text:
    shown = literal(text, style)
    shown.no_wrap, shown.overflow = True, "ellipsis"
    return shown
