"""Which T, or which policy at which T, is the fastest that loses no more than is allowed; and what an oracle would win.

Knows outcomes, seconds and resampling. Knows nothing of models or policies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from lib.stopping.contest import Timed
from lib.stopping.decode import Array

Named = TypeVar("Named")
_RESAMPLES = 10_000


@dataclass(frozen=True)
class Difference:
    """One's retention less another's, and its two-sided 95 % interval over problems."""

    value: float
    low: float
    high: float


def fastest(candidates: Sequence[tuple[Named, Timed]], target_right: Array, retention: float) -> Named:
    """Of those that keep that share of the target's right answers; where none does, of those that keep most."""
    kept = np.array([timed.right.sum() for _, timed in candidates]) / target_right.sum()
    enough = kept >= min(retention, float(kept.max()))
    return max((each for each, ok in zip(candidates, enough, strict=True) if ok), key=lambda each: each[1].rate)[0]


def difference(one: Array, other: Array, target_right: Array) -> Difference:
    """Of right answers (n,) each, paired: problems are drawn again (percentile bootstrap)."""
    n = len(one)
    drawn = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), _RESAMPLES)  # (resamples, n)
    gained = one.astype(float) - other
    low, high = np.quantile((drawn @ gained) / (drawn @ target_right), [0.025, 0.975])
    return Difference(float(gained.sum() / target_right.sum()), float(low), float(high))


def oracle(candidates: Sequence[Timed], lost: int) -> Timed:
    """For each problem the candidate of the fewest seconds a token whose answer is right, and where none is, any.

    lost: problems that it may lose, as those lose that it is held against: it gives up those that this speeds up most.
    """
    tokens, seconds, right = (
        np.stack([getattr(c, name) for c in candidates]) for name in ("tokens", "seconds", "right")
    )
    pace = seconds / tokens  # (candidates, n)
    any_of, kept = pace.argmin(0), np.where(right, pace, np.inf).argmin(0)
    chosen = np.where(right.any(0), kept, any_of)
    columns = np.arange(pace.shape[1])
    saved = (pace[chosen, columns] - pace[any_of, columns]) * tokens[chosen, columns]
    given_up = np.argsort(-np.where(right[any_of, columns], 0.0, saved), kind="stable")[:lost]
    chosen[given_up] = any_of[given_up]
    return Timed(tokens[chosen, columns], seconds[chosen, columns], right[chosen, columns])
