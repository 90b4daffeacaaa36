"""What a number of problems can show: the chance to certify, and how many problems a chance takes.

Knows the score test and a guess of the truth. Knows nothing of where the guess comes from. Betting, where it is
the claim's test, shows less on the same problems (about what the score test
shows on three fifths of them).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import binom

from fsd_calib.certification.outcomes import Counts, Floats, Paired
from fsd_calib.certification.score_test import p_values
from fsd_decoding.errors import UsageError

_MOST = 10_000_000  # problems; who would need more cannot get there
_POINTS = 150  # losses, and as many gains, that are looked at
_SPREAD = ndtri((np.arange(9) + 0.5) / 9)  # a normal law in nine equally likely points
_UNLIKELY = 1e-6  # of the likeliest losses and gains; all beyond make a millionth
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


@lru_cache(maxsize=10_000)  # a search asks the same counts again and again
def power(*, problems: int, accuracy: float, churn: float, retention: float, wanted: float, delta: float) -> float:
    """The chance that so many problems certify `wanted`: the p-value is at most `delta`.

    Sums over losses, gains and a coarse law of both_right, which matters less. No draws, so no noise.
    Absolute accuracy q is retention of a target that is always right: accuracy 1, churn 1 - q, retention q.

    Args:
        problems: on the certification part, one decoding each; for several seeds see `seeds_worth`.
        accuracy, churn, retention: the truth, as `cells` takes it.

    Raises:
        UsageError: see `cells`.
    """
    p = cells(accuracy, churn, retention)
    lost, gained, chances = _likely_flips(problems, p)
    calm = problems - lost - gained
    right = p.both_right / max(p.both_right + p.both_wrong, _TINY)
    deviation = (calm * right * (1 - right)) ** 0.5
    step = max(deviation.max() // 2, 1)  # few numbers of solved problems: each takes a table of the exact test
    solved = lost + gained + calm * right + deviation * _SPREAD[:, None]  # (9, flips)
    both_right = (step * np.rint(solved / step) - lost - gained).clip(0, calm)
    passes = p_values(both_right, lost, gained, calm - both_right, wanted) <= delta
    return min(float(passes.mean(0) @ chances / chances.sum()), 1.0)


def _likely_flips(problems: int, p: Cells) -> tuple[Counts, Counts, Floats]:
    """Losses, gains, and how likely they are, up to a factor."""
    lost, gained = _likely_counts(problems, p.lost)[:, None], _likely_counts(problems, p.gained)
    lost, gained = (x.ravel() for x in np.broadcast_arrays(lost, gained))
    possible = lost + gained <= problems
    lost, gained = lost[possible], gained[possible]
    share = min(p.gained / max(1 - p.lost, _TINY), 1.0)
    chances = binom.pmf(lost, problems, p.lost) * binom.pmf(gained, problems - lost, share)
    likely = chances > _UNLIKELY * chances.max()
    return lost[likely], gained[likely], chances[likely]


def _likely_counts(problems: int, chance: float) -> NDArray[np.int64]:
    """Counts within six standard deviations of the expectation, thinned evenly where they are many."""
    reach = 6 * (problems * chance * (1 - chance)) ** 0.5 + 6
    low, high = max(problems * chance - reach, 0), min(problems * chance + reach, problems)
    return np.unique(np.linspace(low, high, _POINTS).astype(np.int64))


def problems_needed(
    *, accuracy: float, churn: float, retention: float, wanted: float, delta: float, chance: float = 0.8
) -> int | None:
    """A number of problems at which `power` reaches `chance`; None: there is none up to ten million.

    It is the smallest up to the saw teeth of `power`, which comes from counts.
    """

    def enough(problems: int) -> bool:
        return power(problems=problems, accuracy=accuracy, churn=churn, retention=retention, wanted=wanted,
                     delta=delta) >= chance  # fmt: skip

    return None if retention <= wanted else _fewest(enough)


def _fewest(enough: Callable[[int], bool]) -> int | None:
    low, high = 0, 1
    while not enough(high):
        if high > _MOST:
            return None
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def least_problems(accuracy: float, wanted: float, delta: float) -> int | None:
    """The fewest problems that can show `wanted` at all, in the best case; None: not even all of ten million.

    The best case: a target of this accuracy loses nothing, and gains nothing where `wanted` < 1; from 1 on all
    that it fails is gained. For absolute accuracy the target is one that is always right: accuracy 1.
    """

    def enough(problems: int) -> bool:
        right = int(problems * accuracy + _ROUNDING)
        wrong = problems - right
        gained = wrong if wanted >= 1 else 0
        return bool(p_values(right, 0, gained, wrong - gained, wanted) <= delta)

    return _fewest(enough)


def seeds_worth(paired: Paired, wanted: float) -> float:
    """How many problems with one seed a problem with these k seeds is worth, from 1 to k.

    The ratio of variances of B - wanted A, of one decoding and of a problem's mean. Powers for several seeds
    are approximate: `power` of so many times the problems, as if those were independent.
    """
    z = paired.fuzzy - wanted * paired.target
    of_means = float(z.mean(1).var())
    return min(max(float(z.var()) / of_means, 1.0), float(paired.seeds)) if of_means > _TINY else 1.0
