"""Who is faster at batch 1, net of everything: all decode each problem in turn.

Knows clocks, medians and the bootstrap over problems. Knows nothing of what sets them apart.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol, TypeVar

import numpy as np

from fsd_calib.tasks.base import Problem
from lib.stopping.decode import Array

By = TypeVar("By", contravariant=True)

_RESAMPLES, _OUTSIDE = 10_000, 0.05


class Setting(Protocol[By]):
    """What contestants have in common."""

    def decode(self, problems: Sequence[Problem], by: By, /) -> Any: ...

    def right(self, problems: Sequence[Problem], results: Sequence[Any], /) -> Array: ...


@dataclass(frozen=True)
class Timed:
    """One contestant: (n,) of n problems each. seconds: the median over repeats."""

    tokens: Array
    seconds: Array
    right: Array

    @property
    def rate(self) -> float:
        """Tokens a second, prompts and all included."""
        return float(self.tokens.sum() / self.seconds.sum())


@dataclass(frozen=True)
class Faster:
    """One's tokens/s over another's, less 1, and its 95 % interval over problems."""

    gain: float
    low: float
    high: float

    @classmethod
    def of(cls, one: Timed, other: Timed) -> Faster:
        """Paired: each resample draws problems, and takes both contestants' runs of them (percentile bootstrap)."""
        n = len(one.tokens)
        drawn = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), _RESAMPLES)  # (resamples, n)
        resampled = _rates(drawn, one) / _rates(drawn, other) - 1
        low, high = np.quantile(resampled, [_OUTSIDE / 2, 1 - _OUTSIDE / 2])
        return cls(one.rate / other.rate - 1, float(low), float(high))


def contest(
    setting: Setting[By], contestants: Mapping[str, By], problems: Sequence[Problem], repeats: int
) -> dict[str, Timed]:
    """Every problem is decoded by all before the next is by anyone, in an order drawn anew each time."""
    order, names = Random(0), list(contestants)
    seconds = np.zeros((len(names), len(problems), repeats))
    for by in contestants.values():
        setting.decode(problems[:2], by)  # warms up
    told: dict[str, list[Any]] = {name: [None] * len(problems) for name in names}
    for repeat in range(repeats):
        for i, problem in enumerate(problems):
            for k in order.sample(range(len(names)), len(names)):
                began = time.perf_counter()
                (told[names[k]][i],) = setting.decode([problem], contestants[names[k]])
                seconds[k, i, repeat] = time.perf_counter() - began
    return {
        name: Timed(np.array([r.emitted for r in told[name]]), np.median(taken, 1), setting.right(problems, told[name]))
        for name, taken in zip(names, seconds, strict=True)
    }


def _rates(drawn: Array, timed: Timed) -> Array:
    """(resamples,)"""
    return np.asarray((drawn @ timed.tokens) / (drawn @ timed.seconds))
