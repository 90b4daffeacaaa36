"""Timing of contestants that decode each problem in turn at batch 1, with paired intervals over problems."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from fsd_calib.tasks.base import Problem

Array = npt.NDArray[Any]
By = TypeVar("By", contravariant=True)

_RESAMPLES, _OUTSIDE = 10_000, 0.05


class Setting(Protocol[By]):
    """What all contestants have in common; it decodes by one of them and grades the results."""

    def decode(self, problems: Sequence[Problem], by: By, /) -> Any: ...

    def right(self, problems: Sequence[Problem], results: Sequence[Any], /) -> Array: ...


@dataclass(frozen=True)
class Timed:
    """One contestant's tokens, seconds (medians over repeats) and grades, (n,) each, of n problems."""

    tokens: Array
    seconds: Array
    right: Array

    @property
    def rate(self) -> float:
        """Tokens per second of whole calls, prefill included."""
        return float(self.tokens.sum() / self.seconds.sum())


@dataclass(frozen=True)
class Faster:
    """One contestant's tokens/s over another's, less 1, and its two-sided 95 % interval over problems."""

    gain: float
    low: float
    high: float

    @classmethod
    def of(cls, one: Timed, other: Timed) -> Faster:
        """Returns the gain with a paired percentile bootstrap: each resample draws problems for both contestants."""
        n = len(one.tokens)
        drawn = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), _RESAMPLES)  # (resamples, n)
        resampled = _rates(drawn, one) / _rates(drawn, other) - 1
        low, high = np.quantile(resampled, [_OUTSIDE / 2, 1 - _OUTSIDE / 2])
        return cls(one.rate / other.rate - 1, float(low), float(high))


def contest(
    setting: Setting[By], contestants: Mapping[str, By], problems: Sequence[Problem], repeats: int
) -> dict[str, Timed]:
    """Times contestants: all decode a problem before any decodes the next, in an order drawn anew each time."""
    order, names = Random(0), list(contestants)
    seconds = np.zeros((len(names), len(problems), repeats))
    for by in contestants.values():
        setting.decode(problems[:2], by)  # warms up
    results: dict[str, list[Any]] = {name: [None] * len(problems) for name in names}
    for repeat in range(repeats):
        for i, problem in enumerate(problems):
            for k in order.sample(range(len(names)), len(names)):
                began = time.perf_counter()
                (results[names[k]][i],) = setting.decode([problem], contestants[names[k]])
                seconds[k, i, repeat] = time.perf_counter() - began
    return {
        name: Timed(np.array([r.emitted for r in made]), np.median(taken, 1), setting.right(problems, made))
        for (name, made), taken in zip(results.items(), seconds, strict=True)
    }


def _rates(drawn: Array, timed: Timed) -> Array:
    """Returns tokens per second of each resample, (resamples,)."""
    return np.asarray((drawn @ timed.tokens) / (drawn @ timed.seconds))
