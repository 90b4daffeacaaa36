"""Who is faster, and how sure are we: contenders take turns at the same work.

Knows turns, medians, ratios and their bounds. Knows nothing of decoding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

import numpy as np

Work = TypeVar("Work")
_RESAMPLES, _CONFIDENCE = 10_000, 0.95


@dataclass(frozen=True)
class Run:
    """So much of something (tokens, rounds) in so many seconds."""

    amount: float
    seconds: float

    @property
    def rate(self) -> float:
        return self.amount / self.seconds

    def __add__(self, other: Run) -> Run:
        return Run(self.amount + other.amount, self.seconds + other.seconds)


@dataclass(frozen=True)
class Spread:
    """A median over repeats and the quartiles around it."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        low, median, high = np.quantile(values, [0.25, 0.5, 0.75])
        return cls(float(median), float(low), float(high))


@dataclass(frozen=True)
class Ratio:
    """The median over repeats of a ratio taken within a repeat, and one-sided 95 % bounds of that median."""

    median: float
    at_least: float
    at_most: float


def take_turns(
    contenders: Mapping[str, Callable[[Work], Run]], work: Sequence[Work], repeats: int
) -> dict[str, list[Run]]:
    """One `Run` a repeat and contender: its sum over the pieces of `work`.

    All contenders do a piece before anyone does the next, so that a machine that slows down slows them all;
    their order is drawn anew for every piece and repeat, so that nobody always follows the same one.
    """
    order = Random(0)
    taken: dict[str, list[Run]] = {name: [] for name in contenders}
    for _ in range(repeats):
        sums = dict.fromkeys(contenders, Run(0.0, 0.0))
        for piece in work:
            for name in order.sample(list(contenders), len(contenders)):
                sums[name] += contenders[name](piece)
        for name, run in sums.items():
            taken[name].append(run)
    return taken


def rates(runs: Sequence[Run]) -> Spread:
    return Spread.of([run.rate for run in runs])


def speed_up(fast: Sequence[Run], slow: Sequence[Run]) -> Ratio:
    """How many times the rate of `slow` that of `fast` is: both were timed in the same repeats."""
    return bounded([f.rate / s.rate for f, s in zip(fast, slow, strict=True)])


def bounded(ratios: Sequence[float]) -> Ratio:
    """The bounds are percentiles of the medians of 10,000 resamples of the repeats (bootstrap, fixed seed).

    They speak of this work on this machine: another choice of prompts is not among the repeats. With fewer
    than about eight repeats they are too narrow.
    """
    values = np.asarray(ratios, dtype=np.float64)
    resampled = np.random.default_rng(0).choice(values, (_RESAMPLES, len(values)))
    low, high = np.quantile(np.median(resampled, 1), [1 - _CONFIDENCE, _CONFIDENCE])
    return Ratio(float(np.median(values)), float(low), float(high))
