"""What a number of problems can show: the chance to certify, and how many problems a chance takes.

Knows the test of `certify` and a guess of the truth. Knows nothing of where the guess comes from.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import binom

from fsd_calib.certify import p_values
from fsd_decoding.errors import UsageError

_MOST = 10_000_000  # problems; who would need more cannot get there
_POINTS = 150  # losses, and as many gains, that are looked at
_SPREAD = ndtri((np.arange(9) + 0.5) / 9)  # a normal law in nine equally likely points
_TINY = 1e-12
_ROUNDING = 1e-9  # of a share


class Cells(NamedTuple):
    """Probabilities of the four paired outcomes of a problem."""

    both_right: float
    lost: float
    gained: float
    both_wrong: float


def cells(accuracy: float, churn: float, retention: float) -> Cells:
    """From the target's accuracy, losses + gains as a share of problems, and the true retention.

    Raises:
        UsageError: no outcomes have these three numbers; for instance, losing 2 % takes a churn of that.
    """
    lost = (churn + (1 - retention) * accuracy) / 2
    found = Cells(accuracy - lost, lost, churn - lost, 1 - accuracy - churn + lost)
    if not min(found) > -_ROUNDING:
        raise UsageError(
            f"accuracy {accuracy}, churn {churn} and retention {retention} contradict each other: "
            f"the shares of outcomes would be {', '.join(f'{n} {x:.4g}' for n, x in found._asdict().items())}"
        )
    return Cells(*(x if x > _ROUNDING else 0.0 for x in found))


def power(*, problems: int, accuracy: float, churn: float, retention: float, wanted: float, confidence: float) -> float:
    """The chance that so many problems certify `wanted`: `p_value` is at most 1 - `confidence`.

    Sums over losses, gains and a coarse law of both_right, which matters less. No draws, so no noise.

    Args:
        problems: on the certification part.
        accuracy, churn, retention: the truth, as `cells` takes it.

    Raises:
        UsageError: see `cells`.
    """
    p = cells(accuracy, churn, retention)
    lost = _likely_counts(problems, p.lost)[:, None, None]  # (losses, 1, 1)
    gained = _likely_counts(problems, p.gained)[:, None]  # (gains, 1)
    calm = np.maximum(problems - lost - gained, 0)
    right = p.both_right / max(p.both_right + p.both_wrong, _TINY)
    both_right = np.rint(calm * right + (calm * right * (1 - right)) ** 0.5 * _SPREAD).clip(0, calm)
    passes = p_values(both_right, lost, gained, calm - both_right, wanted) <= 1 - confidence
    chances = binom.pmf(lost, problems, p.lost) * binom.pmf(
        gained, np.maximum(problems - lost, 0), min(p.gained / max(1 - p.lost, _TINY), 1.0)
    )
    return float((passes.mean(-1) * chances[..., 0]).sum() / chances.sum())


def _likely_counts(problems: int, chance: float) -> NDArray[np.int64]:
    """Counts within six standard deviations of the expectation, thinned evenly where they are many."""
    reach = 6 * (problems * chance * (1 - chance)) ** 0.5 + 6
    low, high = max(problems * chance - reach, 0), min(problems * chance + reach, problems)
    return np.unique(np.linspace(low, high, _POINTS).astype(np.int64))


def problems_needed(
    *, accuracy: float, churn: float, retention: float, wanted: float, confidence: float, chance: float = 0.8
) -> int | None:
    """A number of problems at which `power` reaches `chance`; None: there is none up to ten million.

    It is the smallest up to the saw teeth of `power`, which comes from counts.
    """

    def enough(problems: int) -> bool:
        return power(problems=problems, accuracy=accuracy, churn=churn, retention=retention, wanted=wanted,
                     confidence=confidence) >= chance  # fmt: skip

    if retention <= wanted:
        return None
    low, high = 0, 1
    while not enough(high):
        if high > _MOST:
            return None
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
