"""Choice of the fastest candidate at a required retention, an oracle to compare with, and retention differences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from lib.common.paired_contest import Array, Timed

Named = TypeVar("Named")
_RESAMPLES = 10_000


@dataclass(frozen=True)
class Difference:
    """One candidate's retention less another's, and its two-sided 95 % interval over problems."""

    value: float
    low: float
    high: float


def fastest(candidates: Sequence[tuple[Named, Timed]], target_right: Array, retention: float) -> Named:
    """Returns the fastest candidate of those with this retention, or, if none has it, of those with the highest."""
    kept = np.array([timed.right.sum() for _, timed in candidates]) / target_right.sum()
    enough = kept >= min(retention, float(kept.max()))
    eligible = (candidate for candidate, ok in zip(candidates, enough, strict=True) if ok)
    return max(eligible, key=lambda candidate: candidate[1].rate)[0]


def difference(one: Array, other: Array, target_right: Array) -> Difference:
    """Compares the grades (n,) of two candidates by a paired percentile bootstrap over problems."""
    n = len(one)
    drawn = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), _RESAMPLES)  # (resamples, n)
    gained = one.astype(float) - other
    low, high = np.quantile((drawn @ gained) / (drawn @ target_right), [0.025, 0.975])
    return Difference(float(gained.sum() / target_right.sum()), float(low), float(high))


def oracle(candidates: Sequence[Timed], lost: int) -> Timed:
    """Returns for each problem the fastest candidate with a right answer, or, if there is none, the fastest of all.

    Args:
        lost: how many problems the oracle may lose, as the candidate lost that it is compared with. It loses those
            that this speeds up most.
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
