"""Progress of long steps: bars on a terminal, plain lines in a log, or nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol, TextIO

from filelock import FileLock, Timeout

from fsd_decoding.terminal import visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID
    from rich.text import Text

Advance = Callable[[int], None]
_SECONDS_BETWEEN_LINES = 30.0
_SECONDS_BEFORE_NOTE = 10.0  # of a wait
_LEVELS = 2  # of nested steps whose beginning and end are printed


class Progress(Protocol):
    """Receives the progress of nested steps, and notes.

    Example: `with progress.step("measuring the target", total=1000) as advance: advance(32)`.
    """

    def step(self, title: str, total: int) -> AbstractContextManager[Advance]:
        """Returns a context for a step, which yields a function that adds to the work done."""
        ...

    def note(self, line: str) -> None:
        """Shows a line that belongs to no step."""
        ...


class Waiting:
    """A wait for other processes, which is noted once when it has become long.

    Args:
        what: What is waited for, in words.
    """

    def __init__(self, progress: Progress, what: str) -> None:
        self._progress, self._what = progress, what
        self._started = time.monotonic()
        self._noted = False

    def still(self) -> None:
        """To be called again and again while nothing happens."""
        if not self._noted and time.monotonic() - self._started > _SECONDS_BEFORE_NOTE:
            self._noted = True
            self._progress.note(f"waiting for another process, which {self._what}")

    @contextmanager
    def holding(self, lock: FileLock) -> Iterator[None]:
        """Holds a lock that another process may have."""
        try:
            lock.acquire(timeout=_SECONDS_BEFORE_NOTE)
        except Timeout:
            self.still()
            lock.acquire()
        try:
            yield
        finally:
            lock.release()


def stderr_progress() -> Progress:
    """Returns bars where stderr is a terminal, else lines."""
    return Bars() if sys.stderr.isatty() else Lines()


class Silent:
    """Shows nothing."""

    @contextmanager
    def step(self, title: str, total: int) -> Iterator[Advance]:
        yield lambda done: None

    def note(self, line: str) -> None:
        pass


class Lines:
    """Prints a line when a step starts, one when it ends, and one every half minute in between.

    Of steps nested more than two deep, which are many, only the half minutes are printed.
    """

    def __init__(self, stream: TextIO | None = None, seconds: float = _SECONDS_BETWEEN_LINES) -> None:
        self._stream = stream or sys.stderr
        self._seconds = seconds
        self._depth = 0

    @contextmanager
    def step(self, title: str, total: int) -> Iterator[Advance]:
        announced = self._depth < _LEVELS
        if announced:
            self.note(f"{title}: 0 of {total}")
        started = printed = time.monotonic()
        done = 0

        def advance(more: int) -> None:
            nonlocal done, printed
            done += more
            if time.monotonic() - printed >= self._seconds:
                printed = time.monotonic()
                self.note(f"{title}: {done} of {total}, {printed - started:.0f} s")

        self._depth += 1
        try:
            yield advance
        finally:
            self._depth -= 1
        if announced:
            self.note(f"{title}: done, {time.monotonic() - started:.1f} s")

    def note(self, line: str) -> None:
        try:
            print(_one_line(line), file=self._stream, flush=True)
        except BrokenPipeError:
            raise
        except OSError:  # a log that cannot grow, on a full disk, must not end hours of work
            pass


class Bars:
    """Shows a bar per step on stderr. Bars of outermost steps stay on screen when done, nested ones disappear."""

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
        (self._bars.console if self._bars else self._console or _stderr()).print(_literal(_one_line(line)))

    @staticmethod
    def _bar(bars: RichProgress, title: str, total: int) -> tuple[TaskID, Advance]:
        task = bars.add_task(visible(title), total=total)
        return task, lambda done: bars.advance(task, done)

    def _display(self) -> RichProgress:
        from rich import progress

        return progress.Progress(
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            progress.TimeRemainingColumn(),
            console=self._console or _stderr(),
        )


def _stderr() -> Console:
    from fsd_collectors.report.terminal import LiteralConsole

    return LiteralConsole(stderr=True)


def _one_line(line: str) -> str:
    """Returns the line without breaks and control characters: a name in it must not look like a line of its own."""
    return visible(" ".join(line.split()))


def _literal(line: str) -> Text:
    from fsd_collectors.report.terminal import literal

    return literal(line)
