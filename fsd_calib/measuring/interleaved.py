"""Times configurations that decode the same problems in turn, so many streams at a time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple, TypeVar

import numpy as np

from fsd_calib.measuring.speed import C, Run, TimedSpeeds
from fsd_calib.progress import Progress, Silent
from fsd_decoding.errors import UsageError

# MERGED: """How busy the machine is, as far as it says."""


P = TypeVar("P")  # a problem

_REFILLS = 4  # prompts a stream in a piece: what is decoded with streams missing at its end weighs less
_PIECES = 10  # at least, where problems suffice
_FEWEST = 3  # pieces: one warms up, two differ


def measure_speeds(
    decode: Callable[[C, Sequence[P]], int], configurations: Sequence[C], problems: Sequence[P], *,
    streams: int = 1, confidence: float = 0.95, repeats: int = 3, progress: Progress | None = None,
    clock: Callable[[], float] = time.perf_counter, seed: int = 0,
) -> TimedSpeeds[C]:  # fmt: skip
    """Every configuration decodes the same pieces of work in turn, in an order drawn anew, so that a machine
    that slows down slows them all.

    A piece counts with the median of its seconds over the repeats, which lie a whole turn apart: one hiccup
    cannot change it, and unlike a minimum it says how fast the machine is, not how fast it can be. The first
    piece only warms up.

    Args:
        decode: decodes problems, `streams` at a time, and returns how many tokens were emitted.
        problems: at one stream each is a piece; at more a piece is up to four problems a stream. Towards its
            end streams are missing, so that speeds are a little low, all alike.
        seed: of the order.

    Raises:
        UsageError: too few problems.
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
    run = Run(
        {kind: emitted / streams for kind, emitted in tokens.items()},
        {kind: np.median(taken, 0) for kind, taken in seconds.items()},
    )
    return TimedSpeeds([run], sum(map(len, work)), confidence)


def pieces(problems: Sequence[P], streams: int) -> list[Sequence[P]]:
    """What is timed at a time: one problem for one stream, else several a stream, as many as leave enough pieces.

    Raises:
        UsageError: there are too few problems.
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
    """`average`: processes that ran or waited to, over the last minute. `cores`: that this process may use."""

    average: float
    cores: int

    @property
    def busy(self) -> bool:
        """Whether some had to wait."""
        return self.average > self.cores


def machine_load() -> MachineLoad | None:
    """None: this system does not say."""
    try:
        return MachineLoad(os.getloadavg()[0], len(os.sched_getaffinity(0)))
    except (AttributeError, OSError):
        return None
