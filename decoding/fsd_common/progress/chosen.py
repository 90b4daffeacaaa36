"""The display of progress that suits the place: bars on a terminal, plain lines in a log, a bar in a notebook."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import Event, Lock, Thread
from typing import TextIO

from fsd_common.formatting import clock
from fsd_common.progress.base import Advance, Progress, ProgressEstimate, RunningStep, Silent
from fsd_common.progress.notebook import NotebookBar, in_notebook
from fsd_common.terminal import say_on, visible

_SHARE, _SOONEST, _LATEST = 0.1, 2.0, 30.0  # of the time gone that may pass without a line, and its ends in seconds
_POLL = 1.0  # seconds between looks at the clock


class Lines:
    """Prints a line when work begins, one when it is done, and in between at first every few seconds, later every half
    minute, also where the work itself tells of nothing.

    Milestones are the outermost steps, or, where the whole work is shown, its stages, and the outermost steps as long
    as the time left is not known; not those of which nobody knows the total. Steps within them print only now and then.

    Args:
        seconds: at most between lines; None: as above.
    """

    def __init__(self, stream: TextIO | None = None, seconds: float | None = None) -> None:
        self._stream = stream or sys.stderr
        self._seconds = seconds
        self._steps: list[RunningStep] = []
        self._estimate: ProgressEstimate | None = None
        self._announced = ""  # the stage that was last named
        self._printed = self._began = time.monotonic()
        self._waits = Lock()  # of two threads, one prints at a time
        self._watching = False

    @contextmanager
    def whole(self, estimate: ProgressEstimate) -> Iterator[None]:
        self._estimate = estimate
        try:
            with self._watched():
                yield
            self.note(estimate.summary)
        finally:
            self._estimate = None

    @contextmanager
    def step(self, title: str, total: int) -> Iterator[Advance]:
        step, outermost = RunningStep(title, total), not self._steps
        self._announce()
        milestone = self._estimate is None and outermost and total > 0
        if milestone:
            self._say(step.state)
        elif outermost and total and self._estimate is not None and self._estimate.left is None:
            self._say(f"{self._estimate.stage}: {step.state}")

        def advance(more: int) -> None:
            step.advance(more)
            self._announce()
            self._say_if_due()

        self._steps.append(step)
        try:
            with self._watched():
                yield advance
        finally:
            self._steps.remove(step)
        if milestone:
            self._say(f"{title}: done, {step.seconds:.1f} s")

    def note(self, line: str) -> None:
        say_on(self._stream, visible(" ".join(line.split())))  # a name in it must not look like a line of its own

    def _say(self, line: str) -> None:
        with self._waits:
            self._printed = time.monotonic()
            self.note(line)

    def _say_if_due(self) -> None:
        """Says what runs, where nothing was said for long."""
        now, steps = time.monotonic(), [*self._steps]  # which the other thread may change
        pause = self._seconds
        if pause is None:
            pause = min(max(_SHARE * (now - self._began), _SOONEST), _LATEST)
        if (steps or self._estimate is not None) and now - self._printed >= pause:
            self._say(self._state(steps[-1] if steps else None))

    def _announce(self) -> None:
        """Names the stage that has begun, if one has and the time left is known."""
        estimate = self._estimate
        if estimate is not None and estimate.stage != self._announced and estimate.left is not None:
            self._announced = estimate.stage
            self._say(f"{estimate.stage}: {estimate.left_in_words}")

    def _state(self, step: RunningStep | None) -> str:
        estimate = self._estimate
        if estimate is None:
            return "" if step is None else f"{step.state}, {step.seconds:.0f} s"
        gone, known = f"{estimate.stage}: {clock(estimate.elapsed)} gone", estimate.left is not None
        now = "" if step is None else step.state if known else step.state_and_left
        return "; ".join(filter(None, (f"{gone}, {estimate.left_in_words}" if known else gone, now, estimate.best)))

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Inside, a thread says what runs even where the work itself tells of nothing; of nested ones the outermost."""
        if self._watching:
            yield
            return
        ended = Event()

        def watch() -> None:
            while not ended.wait(_POLL):
                self._say_if_due()

        watcher = Thread(target=watch, daemon=True)
        self._watching = True
        watcher.start()
        try:
            yield
        finally:
            self._watching = False
            ended.set()
            watcher.join()


_WITHOUT_CURSOR = ("dumb", "unknown")  # terminals on which nothing can be drawn over


def stderr_progress(quiet: bool = False) -> Progress:
    """Returns bars where stderr is a terminal that can draw them, else lines; nothing at all where `quiet`."""
    if quiet:
        return Silent()
    if sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") not in _WITHOUT_CURSOR:
        from fsd_common.progress.bars import Bars

        return Bars()
    return Lines()


@cache
def called_progress() -> Progress:
    """Returns what shows the progress of functions called without one: a bar in a notebook, elsewhere nothing."""
    return NotebookBar() if in_notebook() else Silent()
