"""Timing of settings that decode the same problems in turn, with several streams at a time, until they differ."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from fsd_calib.measuring.speed import C, Clock, TimedRun, TimedSpeeds, fewest
from fsd_common.argument_checks import named
from fsd_common.errors import UsageError
from fsd_common.progress.base import Progress, Silent

P = TypeVar("P")  # a problem

LOOKS = (10, 20, 40, 80, 160)
"""Numbers of turns after which timing may stop by what it shows."""

Clocks = Mapping[Clock, Callable[[], float]]
WALL: Clocks = {"wall": time.perf_counter}
WALL_AND_CPU: Clocks = {**WALL, "cpu": time.process_time}

_REFILLS = 4  # prompts per stream in a piece: reduces the weight of its end, where some streams are idle
_PIECES = 10  # pieces at least, where there are enough problems: one to warm up, and eight for an interval
_FEWEST = 3  # pieces
_REPEATS = 3  # turns of a piece at most
_HARD = 2  # times as long as planned is not exceeded


@dataclass(frozen=True)
class Until(Generic[C]):
    """When timing ends: after a look that decides, or when its time is used.

    Attributes:
        seconds: Planned: where they are used, no further turn begins, but for those before the first look, which have
            twice as long. After that not even a decoding begins, except in the very first turn, as without it there is
            no speed at all.
        decided: Whether what was timed so far suffices; called at each of `LOOKS`. None: what is timed does not depend
            on what it shows.
    """

    seconds: float = math.inf
    decided: Callable[[TimedSpeeds[C]], bool] | None = None


def measure_speeds(
    decode: Callable[[C, Sequence[P]], int], settings: Sequence[C], problems: Sequence[P], *,
    streams: int = 1, confidence: float = 0.95, until: Until[C] | None = None, briefly: Collection[C] = (),
    progress: Progress | None = None, clocks: Clocks = WALL, seed: int = 0,
) -> TimedSpeeds[C]:  # fmt: skip
    """Returns the speeds of settings that decode the same pieces of work in turn.

    They take turns on every piece, in an order drawn anew, so that a machine that slows down slows them all. The first
    piece is for warm-up only. Where all pieces had their turn they come again, up to three times.

    A look at the ratio of two speeds errs with probability 1 - `confidence` over the number of looks, so all looks
    together, whichever of them ends the timing, err with probability 1 - `confidence` at most. When the time is used
    does not depend on which of the two is the faster one, so it costs nothing: the last look is then the next one,
    earlier.

    Args:
        decode: Decodes problems, `streams` at a time, and returns the number of emitted tokens.
        settings: The last two are those whose ratio matters.
        problems: With one stream each problem is a piece; with more a piece is up to four problems per stream. Some
            streams are idle towards its end, so speeds are slightly low, for all alike.
        until: By default all pieces have three turns, or 160 in all.
        briefly: Settings that have no turns after the first look, unless it takes more for an interval.
        seed: Of the order.

    Raises:
        UsageError: There are too few problems.
    """
    warm_up, *work = pieces(problems, streams)
    until, timed = until or Until(), _Turns(list(dict.fromkeys(settings)), clocks)
    began, now, order = clocks["wall"](), clocks["wall"], Random(seed)
    looks = 1 if until.decided is None else len(LOOKS)
    brief = max(LOOKS[0], fewest((1 - confidence) / looks))

    def speeds() -> TimedSpeeds[C]:
        seen = min(timed.count, len(work)) * len(warm_up)
        return TimedSpeeds([timed.run(len(work), streams)], seen, confidence, 0, len(warm_up) / streams, looks)

    most = min(LOOKS[-1], _REPEATS * len(work))
    with (progress or Silent()).step(f"timing, {streams} at a time", most) as advance:
        for kind in timed.kinds:
            decode(kind, warm_up)
        for turn in range(most):
            used = now() - began
            if used >= until.seconds * (_HARD if turn < LOOKS[0] else 1) and turn:
                break
            kinds = [kind for kind in timed.kinds if turn < brief or kind not in briefly]
            stop = began + _HARD * until.seconds if turn else math.inf
            if not timed.take(decode, order.sample(kinds, len(kinds)), work[turn % len(work)], stop):
                break
            advance(1)
            if turn + 1 in LOOKS and until.decided is not None and until.decided(speeds()):
                break
    return speeds()


class _Turns(Generic[C]):
    """The turns so far.

    Args:
        kinds: The settings.
    """

    def __init__(self, kinds: Sequence[C], clocks: Clocks) -> None:
        self.kinds, self._clocks = kinds, clocks
        self._turns: list[dict[C, tuple[int, dict[Clock, float]]]] = []

    @property
    def count(self) -> int:
        return len(self._turns)

    def take(self, decode: Callable[[C, Sequence[P]], int], kinds: Sequence[C], piece: Sequence[P], end: float) -> bool:
        """Decodes a piece under all these settings; returns whether there was time for it.

        Args:
            end: When the time is over, by the wall's clock; a turn that is not finished then does not count.
        """
        turn = {}
        for kind in kinds:
            if self._clocks["wall"]() >= end:
                return False
            began = {name: clock() for name, clock in self._clocks.items()}
            tokens = decode(kind, piece)
            turn[kind] = tokens, {name: clock() - began[name] for name, clock in self._clocks.items()}
        self._turns.append(turn)
        return True

    def run(self, pieces: int, streams: int) -> TimedRun[C]:
        """Returns the turns as arrays. `pieces`: that the turns went through, again and again."""
        nothing: tuple[float, dict[Clock, float]] = (math.nan, dict.fromkeys(self._clocks, math.nan))
        rows = {kind: [turn.get(kind, nothing) for turn in self._turns] for kind in self.kinds}
        return TimedRun(
            np.arange(self.count) % pieces,
            {kind: np.array([tokens / streams for tokens, _ in row]) for kind, row in rows.items()},
            {
                clock: {kind: np.array([seconds[clock] for _, seconds in row]) for kind, row in rows.items()}
                for clock in self._clocks
            },
        )


def pieces(problems: Sequence[P], streams: int) -> list[Sequence[P]]:
    """Returns the pieces to time: single problems for one stream, else several per stream, as many as leave enough
    pieces.

    Raises:
        UsageError: There are too few problems.
    """
    size = 1 if streams == 1 else min(max(len(problems) // _PIECES, streams), _REFILLS * streams)
    whole = [problems[at : at + size] for at in range(0, len(problems) - size + 1, size)]
    if len(whole) < _FEWEST:
        raise UsageError(
            f"there are {len(problems)} problems to time {streams} at a time; it takes at least {_FEWEST * size}: "
            f"give more problems or a smaller {named('serve_batch')}"
        )
    return whole


class MachineLoad(NamedTuple):
    """The load of the machine.

    Attributes:
        average: Number of running or waiting processes, averaged over the last minute.
        cores: CPU cores that this process may use.
    """

    average: float
    cores: int

    @property
    def busy(self) -> bool:
        """Whether some processes had to wait."""
        return self.average > self.cores

    @property
    def slower(self) -> float:
        """How many times as long work takes as on an idle machine, where all processes get as much; at least 1."""
        return max(self.average / self.cores, 1.0)

    def __str__(self) -> str:
        return f"load {self.average:.1f} on {self.cores} core{'s' * (self.cores != 1)}"


def machine_load() -> MachineLoad | None:
    """Returns the load, or None where the operating system does not report it."""
    try:
        return MachineLoad(os.getloadavg()[0], len(os.sched_getaffinity(0)))
    except (AttributeError, OSError):
        return None
