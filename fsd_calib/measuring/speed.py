"""Tokens a second of one stream, with so many streams at a time, and how sure that is.

Knows clocks, turns and resampling. Knows nothing of models: decoding is a function that counts what it emitted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr
from scipy.stats import t as student

from fsd_calib.progress import Progress, Silent
from fsd_decoding.errors import UsageError

C = TypeVar("C", bound=Hashable)  # a configuration
P = TypeVar("P")  # a problem
Floats = NDArray[np.float64]

_RESAMPLES = 2000
_REFILLS = 4  # prompts a stream in a piece: what is decoded with streams missing at its end weighs less
_PIECES = 10  # at least, where problems suffice
_FEWEST = 3  # pieces: one warms up, two differ


@dataclass(frozen=True)
class Interval:
    """An estimate, and a central interval around it."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Speeds(Generic[C]):
    """What every configuration made of the same pieces of work: arrays (pieces,), tokens emitted and seconds."""

    tokens: Mapping[C, Floats]
    seconds: Mapping[C, Floats]
    streams: int
    problems: int  # timed
    confidence: float  # that an interval covers the truth

    @property
    def pieces(self) -> int:
        return len(next(iter(self.tokens.values())))

    def of(self, configuration: C) -> Interval:
        """Tokens a second of one stream."""
        return self._interval(lambda picked: self._rate(configuration, picked))

    def ratio(self, fast: C, slow: C) -> Interval:
        """How many times the speed of `slow` that of `fast` is, piece by piece on the same problems."""
        return self._interval(lambda picked: self._rate(fast, picked) / self._rate(slow, picked))

    def _rate(self, configuration: C, picked: Floats) -> Floats:
        """`picked` (…, pieces): how often each piece counts."""
        rate: Floats = picked @ self.tokens[configuration] / (picked @ self.seconds[configuration]) / self.streams
        return rate

    def _interval(self, of: Callable[[Floats], Floats]) -> Interval:
        """Bootstrap over pieces, with a fixed seed.

        Percentiles reach as far as Student's t with pieces - 1 degrees of freedom would and make up for the
        spread that resampling lacks ("expanded percentiles": Hesterberg, What teachers should know about the
        bootstrap, 2014, section 3.3): without that, ten pieces' 95 % cover some 90 %.
        """
        n = self.pieces
        picked = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), _RESAMPLES).astype(np.float64)
        tail = float(ndtr(student.ppf((1 - self.confidence) / 2, n - 1) * (n / (n - 1)) ** 0.5))
        low, high = np.quantile(of(picked), [tail, 1 - tail])
        return Interval(float(of(np.ones(n))), float(low), float(high))


def measure_speeds(
    decode: Callable[[C, Sequence[P]], int], configurations: Sequence[C], problems: Sequence[P], *,
    streams: int = 1, confidence: float = 0.95, repeats: int = 3, progress: Progress | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Speeds[C]:  # fmt: skip
    """Every configuration decodes the same pieces of work in turn, in an order drawn anew, so that a machine
    that slows down slows them all.

    A piece counts with the median of its seconds over the repeats, which lie a whole turn apart: one hiccup
    cannot change it, and unlike a minimum it says how fast the machine is, not how fast it can be. The first
    piece only warms up.

    Args:
        decode: decodes problems, `streams` at a time, and returns how many tokens were emitted.
        problems: at one stream each is a piece; at more a piece is up to four problems a stream. Towards its
            end streams are missing, so that speeds are a little low, all alike.

    Raises:
        UsageError: too few problems.
    """
    warm_up, *work = pieces(problems, streams)
    order, kinds = Random(0), list(dict.fromkeys(configurations))
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
    return Speeds(
        tokens, {kind: np.median(taken, 0) for kind, taken in seconds.items()}, streams, sum(map(len, work)), confidence
    )


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
