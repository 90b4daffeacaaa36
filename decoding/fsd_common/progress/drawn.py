"""Displays that draw over what they drew before: what there is to see of the work at a moment."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

from fsd_common.formatting import clock
from fsd_common.progress.base import Advance, ProgressEstimate, RunningStep


class Seen(NamedTuple):
    """One bar, and the lines below it.

    Attributes:
        done, total: of the bar, in one unit; total None: nobody knows it.
        gone, left: the time, in words; left may be empty.
        best: the best result so far, or empty.
        step: the innermost step that the bar is not of, or empty.
    """

    title: str
    done: float
    total: float | None
    gone: str
    left: str
    best: str
    step: str

    @property
    def share(self) -> float | None:
        """Of the work that is done; None: not known."""
        return min(self.done / self.total, 1.0) if self.total else None


class Drawn(ABC):
    """Shows one bar for the whole work, the best result so far, and the innermost step.

    Where nothing tells of the whole, the outermost step is that bar.
    """

    def __init__(self) -> None:
        self._steps: list[RunningStep] = []
        self._estimates: list[ProgressEstimate] = []

    @contextmanager
    def whole(self, estimate: ProgressEstimate) -> Iterator[None]:
        self._estimates.append(estimate)
        try:
            with self._display():
                yield
        finally:
            self._estimates.remove(estimate)
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

    @abstractmethod
    def note(self, line: str) -> None:
        """Shows a line that stays."""

    @abstractmethod
    def _display(self) -> AbstractContextManager[None]:
        """Draws while inside, from the first that enters to the last that leaves."""

    def seen(self) -> Seen | None:
        """Returns what there is to see now, in any thread; None: nothing runs."""
        steps, estimates = list(self._steps), list(self._estimates)
        if estimates:
            estimate = estimates[-1]
            left = estimate.left
            step = "" if not steps else steps[-1].state if left is not None else steps[-1].state_and_left
            total = None if left is None else estimate.elapsed + left
            gone = clock(estimate.elapsed)
            return Seen(estimate.stage, estimate.elapsed, total, gone, estimate.left_in_words, estimate.best, step)
        if not steps:
            return None
        first, *inner = steps
        gone = clock(time.monotonic() - first.started)
        below = inner[-1].state if inner else ""
        return Seen(first.title, first.done, first.total or None, gone, first.left_in_words, "", below)
