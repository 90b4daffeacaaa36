"""The display of progress that suits where stderr goes: bars on a terminal, or plain lines in a log."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from fsd_common.formatting import clock
from fsd_common.progress.base import Advance, Progress, ProgressEstimate, Silent
from fsd_common.terminal import say_on, visible

_SECONDS_BETWEEN_LINES = 30.0


class Lines:
    """Prints a line when work begins, one when it is done, and in between one every half minute.

    Milestones are the outermost steps, or, where the whole work is shown, its stages. Steps within them print only
    with the half minutes.
    """

    def __init__(self, stream: TextIO | None = None, seconds: float = _SECONDS_BETWEEN_LINES) -> None:
        self._stream = stream or sys.stderr
        self._seconds = seconds
        self._depth = 0
        self._estimate: ProgressEstimate | None = None
        self._announced = ""  # the stage that was last named
        self._printed = time.monotonic()

    @contextmanager
    def whole(self, estimate: ProgressEstimate) -> Iterator[None]:
        self._estimate = estimate
        try:
            yield
            self.note(estimate.summary)
        finally:
            self._estimate = None

    @contextmanager
    def step(self, title: str, total: int) -> Iterator[Advance]:
        self._announce()
        milestone = self._estimate is None and self._depth == 0 and total > 0
        if milestone:
            self._say(f"{title}: 0 of {total}")
        started, done = time.monotonic(), 0

        def advance(more: int) -> None:
            nonlocal done
            done += more
            self._announce()
            if time.monotonic() - self._printed >= self._seconds:
                self._say(self._state(f"{title}: {done} of {total}", time.monotonic() - started))

        self._depth += 1
        try:
            yield advance
        finally:
            self._depth -= 1
        if milestone:
            self._say(f"{title}: done, {time.monotonic() - started:.1f} s")

    def note(self, line: str) -> None:
        say_on(self._stream, visible(" ".join(line.split())))  # a name in it must not look like a line of its own

    def _say(self, line: str) -> None:
        self._printed = time.monotonic()
        self.note(line)

    def _announce(self) -> None:
        """Names the stage that has begun, if one has."""
        estimate = self._estimate
        if estimate is not None and estimate.stage != self._announced:
            self._announced = estimate.stage
            self._say(f"{estimate.stage}: {estimate.left_in_words}")

    def _state(self, step: str, seconds: float) -> str:
        estimate = self._estimate
        if estimate is None:
            return f"{step}, {seconds:.0f} s"
        parts = [f"{estimate.stage}: {clock(estimate.elapsed)} gone, {estimate.left_in_words}", step, estimate.best]
        return "; ".join(filter(None, parts))


_WITHOUT_CURSOR = ("dumb", "unknown")  # terminals on which nothing can be drawn over


def stderr_progress(quiet: bool = False) -> Progress:
    """Returns bars where stderr is a terminal that can draw them, else lines; nothing at all where `quiet`."""
    if quiet:
        return Silent()
    if sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") not in _WITHOUT_CURSOR:
        from fsd_common.progress.bars import Bars

        return Bars()
    return Lines()
