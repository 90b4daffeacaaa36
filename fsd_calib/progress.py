"""Progress of long steps, as the code that works tells it; `fsd_calib/display` shows it on terminals and in logs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol, runtime_checkable

from filelock import FileLock, Timeout

from fsd_calib.outlook import Outlook

Advance = Callable[[int], None]
_SECONDS_BEFORE_NOTE = 10.0  # of a wait


class Progress(Protocol):
    """Receives the progress of nested steps, and notes.

    Example: `with progress.step("measuring the target", total=1000) as advance: advance(32)`.
    """

    def step(self, title: str, total: int) -> AbstractContextManager[Advance]:
        """Returns a context for a step, which yields a function that adds to the work done.

        Args:
            total: the whole work; 0: nobody knows it, and nothing is added.
        """
        ...

    def note(self, line: str) -> None:
        """Shows a line that belongs to no step."""
        ...


@runtime_checkable
class ShowsWhole(Protocol):
    """A `Progress` that can also show how far the whole work is, of which its steps are parts."""

    def whole(self, outlook: Outlook) -> AbstractContextManager[None]:
        """Returns a context for all of the work; the outlook is read whenever something is shown."""
        ...


def showing_whole(progress: Progress, outlook: Outlook) -> AbstractContextManager[None]:
    """Returns a context in which the whole work is shown, where the progress can do that."""
    return progress.whole(outlook) if isinstance(progress, ShowsWhole) else nullcontext()


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


class Silent:
    """Shows nothing."""

    @contextmanager
    def step(self, title: str, total: int) -> Iterator[Advance]:
        yield lambda done: None

    def note(self, line: str) -> None:
        pass
