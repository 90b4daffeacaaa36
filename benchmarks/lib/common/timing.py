"""Timing of contenders that take turns at the same work, and confidence bounds of the ratios of their speeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol, Self, TypeVar

import numpy as np


class Summable(Protocol):
    """What a piece of work took."""

    def __add__(self, other: Self, /) -> Self: ...


Work = TypeVar("Work")
Taken = TypeVar("Taken", bound=Summable)
_RESAMPLES, _CONFIDENCE = 10_000, 0.95


@dataclass(frozen=True)
class Run:
    """An amount of work (tokens, rounds) and the seconds it took."""

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
    """The median over repeats of a ratio within each repeat, and one-sided 95 % confidence bounds of that median."""

    median: float
    at_least: float
    at_most: float


def take_turns(
    contenders: Mapping[str, Callable[[Work], Taken]], work: Sequence[Work], repeats: int
) -> dict[str, list[Taken]]:
    """Returns for each contender what one repeat took, for all repeats: the sum over the pieces of `work`, in order.

    All contenders do a piece before any does the next, so that a machine that slows down slows all of them. Their order
    is drawn anew for every piece and repeat, so that none always follows the same other one.
    """
    order = Random(0)
    runs: dict[str, list[Taken]] = {name: [] for name in contenders}
    for _ in range(repeats):
        sums: dict[str, Taken] = {}
        for piece in work:
            for name in order.sample(list(contenders), len(contenders)):
                taken = contenders[name](piece)
                sums[name] = sums[name] + taken if name in sums else taken
        for name, run in sums.items():
            runs[name].append(run)
    return runs


def rates(runs: Sequence[Run]) -> Spread:
    return Spread.of([run.rate for run in runs])


def speed_up(fast: Sequence[Run], slow: Sequence[Run]) -> Ratio:
    """Returns the rate of `fast` over that of `slow`, which were timed in the same repeats."""
    return ratio_of_repeats([f.rate / s.rate for f, s in zip(fast, slow, strict=True)])


def ratio_of_repeats(ratios: Sequence[float]) -> Ratio:
    """Returns the median of one ratio per repeat, with its bounds.

    The bounds are percentiles of the medians of 10,000 resamples of the repeats (bootstrap, fixed seed). They hold for
    this work on this machine, since the repeats do not vary the prompts. With fewer than about eight repeats they are
    too narrow.
    """
    values = np.asarray(ratios, dtype=np.float64)
    resampled = np.random.default_rng(0).choice(values, (_RESAMPLES, len(values)))
    low, high = np.quantile(np.median(resampled, 1), [1 - _CONFIDENCE, _CONFIDENCE])
    return Ratio(float(np.median(values)), float(low), float(high))
