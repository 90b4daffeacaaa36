"""Progress of long steps: bars on a terminal, plain lines in a log, or nothing.

Knows titles, totals and time. Knows nothing of what is being done.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

Advance = Callable[[int], None]
_SECONDS_BETWEEN_LINES = 30.0
_TOLD = 2  # levels of steps whose beginning and end are lines


class Progress(Protocol):
    """`with progress.step("measuring the target", total=1000) as advance: advance(32)`. Steps may nest."""

    def step(self, title: str, total: int) -> AbstractContextManager[Advance]: ...

    def note(self, line: str) -> None:
        """Something worth knowing that is no step."""
        ...


def stderr_progress() -> Progress:
    """Bars where stderr is a terminal, else lines."""
    return Bars() if sys.stderr.isatty() else Lines()


class Silent:
    @contextmanager
    def step(self, title: str, total: int) -> Iterator[Advance]:
        yield lambda done: None

    def note(self, line: str) -> None:
        pass


class Lines:
    """One line when a step starts, one when it ends, and one every half minute between. Steps within a step within
    a step, of which there are many, only tell the half minutes."""

    def __init__(self, stream: TextIO | None = None, seconds: float = _SECONDS_BETWEEN_LINES) -> None:
        self._stream = stream or sys.stderr
        self._seconds = seconds
        self._depth = 0

    @contextmanager
    def step(self, title: str, total: int) -> Iterator[Advance]:
        told = self._depth < _TOLD
        if told:
            self._say(f"{title}: 0 of {total}")
        started = said = time.monotonic()
        done = 0

        def advance(more: int) -> None:
            nonlocal done, said
            done += more
            if time.monotonic() - said >= self._seconds:
                said = time.monotonic()
                self._say(f"{title}: {done} of {total}, {said - started:.0f} s")

        self._depth += 1
        try:
            yield advance
        finally:
            self._depth -= 1
        if told:
            self._say(f"{title}: done, {time.monotonic() - started:.1f} s")

    def note(self, line: str) -> None:
        self._say(line)

    def _say(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


class Bars:
    """A bar a step, on stderr. The outermost stay on screen when they are done, the ones within go."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console
        self._bars: RichProgress | None = None

    @contextmanager
    def step(self, title: str, total: int) -> Iterator[Advance]:
        if self._bars is None:
            with self._display() as self._bars:
                try:
                    yield self._bar(self._bars, title, total)[1]
                finally:
                    self._bars = None
            return
        bars = self._bars
        task, advance = self._bar(bars, title, total)
        try:
            yield advance
        finally:
            bars.remove_task(task)

    def note(self, line: str) -> None:
        (self._bars.console if self._bars else self._console or _stderr()).print(line, highlight=False)

    @staticmethod
    def _bar(bars: RichProgress, title: str, total: int) -> tuple[TaskID, Advance]:
        task = bars.add_task(title, total=total)
        return task, lambda done: bars.advance(task, done)

    def _display(self) -> RichProgress:
        from rich import progress

        return progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            progress.TimeRemainingColumn(),
            console=self._console or _stderr(),
        )


def _stderr() -> Console:
    from rich.console import Console

    return Console(stderr=True)
