"""Progress of long work as the code that works tells it: its steps, notes, the whole and the time left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from filelock import FileLock, Timeout

from fsd_common.formatting import clock, megabytes

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


@contextmanager
def reading(progress: Progress, what: str, size: int) -> Iterator[Advance]:
    """Yields a function that adds bytes to a step, which shows megabytes.

    Args:
        size: bytes in all.
    """
    read = shown = 0
    with progress.step(f"{what}, MB", megabytes(size)) as advance:

        def add(more: int) -> None:
            nonlocal read, shown
            read += more
            advance(megabytes(read) - shown)
            shown = megabytes(read)

        yield add


@runtime_checkable
class ShowsWhole(Protocol):
    """A `Progress` that can also show how far the whole work is, of which its steps are parts."""

    def whole(self, estimate: ProgressEstimate) -> AbstractContextManager[None]:
        """Returns a context for all of the work; the estimate is read whenever something is shown."""
        ...


def showing_whole(progress: Progress, estimate: ProgressEstimate) -> AbstractContextManager[None]:
    """Returns a context in which the whole work is shown, where the progress can do that."""
    return progress.whole(estimate) if isinstance(progress, ShowsWhole) else nullcontext()


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
        """Notes the wait once it is long; to be called again and again while nothing happens."""
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


_COUNTABLE = 10  # parts of a step at least, to tell from those that are done when the rest will be


@dataclass
class RunningStep:
    """A step as displays show it.

    Args:
        total: its parts; 0: nobody knows them.
    """

    title: str
    total: int
    done: int = 0
    started: float = field(default_factory=time.monotonic)

    def advance(self, more: int) -> None:
        """Adds parts that are done."""
        self.done += more

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self.started

    @property
    def state(self) -> str:
        """What is done of it."""
        return f"{self.title}: {self.done} of {self.total}" if self.total else self.title

    @property
    def left_in_words(self) -> str:
        """The time left; empty: it cannot be told."""
        if self.total < _COUNTABLE or not self.done:
            return ""
        return f"about {clock(self.seconds / self.done * max(self.total - self.done, 0))} left"

    @property
    def state_and_left(self) -> str:
        """Both, where nothing else tells of the time."""
        return ", ".join(filter(None, (self.state, self.left_in_words)))


_MEASURED = 0.25  # of a stage: from here on its own pace says more than the plan


@dataclass(frozen=True)
class Stage:
    """A part of the work that a plan knows.

    Args:
        seconds: as expected.
        units: decodings that are expected; 0: the clock alone tells how far it is.
    """

    name: str
    seconds: float
    units: int = 0


class ProgressEstimate:
    """Tells how far the work is, and how long it will take; displays read it whenever they draw.

    Until `expect` has named the stages, the time left is not known.

    Args:
        stage: the name of what comes before the stages.
        now: a clock, in seconds.
    """

    def __init__(self, stage: str = "preparing", now: Callable[[], float] = time.monotonic) -> None:
        self.stage, self.best = stage, ""
        self._now = now
        self._planned: tuple[Stage, ...] = ()
        self._done: Callable[[], int] = lambda: 0
        self._started = self._stage_started = now()
        self._units_before = 0
        self._spent: list[tuple[str, float]] = []

    def expect(self, stages: Sequence[Stage], done: Callable[[], int]) -> None:
        """Says what is to come.

        Args:
            stages: in their order.
            done: returns how many decodings there were so far.
        """
        self._planned, self._done = tuple(stages), done

    def prepare(self, seconds: float, stages: Sequence[Stage], done: Callable[[], int]) -> None:
        """Says that the current stage is expected to take so many more seconds, before those stages; see `expect`."""
        self.expect([Stage(self.stage, self.elapsed + seconds), *stages], done)

    def begin(self, stage: str) -> None:
        """Ends the current stage and begins another."""
        self._spent.append((self.stage, self._now() - self._stage_started))
        self.stage, self._stage_started, self._units_before = stage, self._now(), self._done()

    @property
    def elapsed(self) -> float:
        """Seconds since the work began."""
        return self._now() - self._started

    @property
    def left(self) -> float | None:
        """Expected seconds until the end; None: not known."""
        names = [stage.name for stage in self._planned]
        if self.stage not in names:
            return None
        place = names.index(self.stage)
        later = sum(stage.seconds for stage in self._planned[place + 1 :])
        return later + self._left_of(self._planned[place])

    @property
    def overdue(self) -> bool:
        """Whether the current stage has done all that was planned of it and is not finished."""
        return any(stage.name == self.stage and self._share_of(stage) >= 1 for stage in self._planned)

    @property
    def left_in_words(self) -> str:
        """The time left, as displays show it."""
        left = self.left
        if left is None:
            return "time left not known yet"
        if not self.overdue:
            return f"about {clock(left)} left"
        return f"more than {clock(left)} left" if left else "longer than planned"

    @property
    def summary(self) -> str:
        """How long the work took, and each of its stages."""
        spent = [*self._spent, (self.stage, self._now() - self._stage_started)]
        each = ", ".join(f"{name} {clock(seconds)}" for name, seconds in spent)
        return f"done in {clock(self.elapsed)} ({each})"

    def _left_of(self, stage: Stage) -> float:
        share, spent = self._share_of(stage), self._now() - self._stage_started
        whole = spent / share if stage.units and share >= _MEASURED else stage.seconds
        return max(1 - share, 0.0) * whole

    def _share_of(self, stage: Stage) -> float:
        if stage.units:
            return (self._done() - self._units_before) / stage.units
        return (self._now() - self._stage_started) / max(stage.seconds, 1e-9)
