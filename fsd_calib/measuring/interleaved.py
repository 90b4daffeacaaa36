"""Timing of configurations that decode the same problems in turn, with several streams at a time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple, TypeVar

import numpy as np

from fsd_calib.measuring.speed import C, TimedRun, TimedSpeeds
from fsd_calib.progress import Progress, Silent
from fsd_decoding.errors import UsageError

P = TypeVar("P")  # a problem

_REFILLS = 4  # prompts per stream in a piece: reduces the weight of its end, where some streams are idle
_PIECES = 10  # pieces at least, where there are enough problems
_FEWEST = 3  # pieces: one to warm up, and two for a variance


def measure_speeds(
    decode: Callable[[C, Sequence[P]], int], configurations: Sequence[C], problems: Sequence[P], *,
    streams: int = 1, confidence: float = 0.95, repeats: int = 3, progress: Progress | None = None,
    clock: Callable[[], float] = time.perf_counter, seed: int = 0,
) -> TimedSpeeds[C]:  # fmt: skip
    """Returns the speeds of configurations that decode the same pieces of work in turn.

    They take turns on every piece, in an order drawn anew, so that a machine that slows down slows them all. A piece
    counts with the median of its seconds over the repeats, which lie a whole turn apart: one outlier cannot change it
    and, unlike the minimum, it measures the typical speed of the machine. The first piece is for warm-up only.

    Args:
        decode: Decodes problems, `streams` at a time, and returns the number of emitted tokens.
        problems: With one stream each problem is a piece; with more a piece is up to four problems per stream. Some
            streams are idle towards its end, so speeds are slightly low, for all alike.
        seed: Of the order.

    Raises:
        UsageError: There are too few problems.
    """
    warm_up, *work = pieces(problems, streams)
    order, kinds = Random(seed), list(dict.fromkeys(configurations))
    tokens = {kind: np.zeros(len(work)) for kind in kinds}
    seconds = {kind: np.zeros((repeats, len(work))) for kind in kinds}
    with (progress or Silent()).step(f"timing, {streams} at a time", repeats * len(work)) as advance:
        for kind in kinds:
            decode(kind, warm_up)
        for turn in range(repeats):
            for i, piece in enumerate(work):
                for kind in order.sample(kinds, len(kinds)):
                    began = clock()
                    tokens[kind][i] = decode(kind, piece)
                    seconds[kind][turn, i] = clock() - began
                advance(1)
    run = TimedRun(
        {kind: emitted / streams for kind, emitted in tokens.items()},
        {kind: np.median(taken, 0) for kind, taken in seconds.items()},
        len(warm_up) / streams,
    )
    return TimedSpeeds([run], sum(map(len, work)), confidence)


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
            "give more problems or a smaller --serve-batch"
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


def machine_load() -> MachineLoad | None:
    """Returns the load, or None where the operating system does not report it."""
    try:
        return MachineLoad(os.getloadavg()[0], len(os.sched_getaffinity(0)))
    except (AttributeError, OSError):
        return None
