"""Progress as plain lines, for logs: milestones, and between them a line every half minute."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from fsd_common.formatting import clock
from fsd_common.progress.base import Advance, Outlook
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
        self._outlook: Outlook | None = None
        self._announced = ""  # the stage that was last named
        self._printed = time.monotonic()

    @contextmanager
    def whole(self, outlook: Outlook) -> Iterator[None]:
        self._outlook = outlook
        try:
            yield
            self.note(outlook.summary)
        finally:
            self._outlook = None

    @contextmanager
    def step(self, title: str, total: int) -> Iterator[Advance]:
        self._announce()
        milestone = self._outlook is None and self._depth == 0 and total > 0
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
        say_on(self._stream, _one_line(line))

    def _say(self, line: str) -> None:
        self._printed = time.monotonic()
        self.note(line)

    def _announce(self) -> None:
        """Names the stage that has begun, if one has."""
        outlook = self._outlook
        if outlook is not None and outlook.stage != self._announced:
            self._announced = outlook.stage
            self._say(f"{outlook.stage}: {outlook.left_in_words}")

    def _state(self, step: str, seconds: float) -> str:
        outlook = self._outlook
        if outlook is None:
            return f"{step}, {seconds:.0f} s"
        parts = [f"{outlook.stage}: {clock(outlook.elapsed)} gone, {outlook.left_in_words}", step, outlook.best]
        return "; ".join(filter(None, parts))


def _one_line(line: str) -> str:
    """Returns the line without breaks and control characters: a name in it must not look like a line of its own."""
    return visible(" ".join(line.split()))
