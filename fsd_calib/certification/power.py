"""Power of the certification test: the probability to certify, and the number of problems that it takes.

Computed for the score test on the whole part; `Looks.outlook` tells what looks change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import binom

from fsd_calib.certification.looks import Looks
from fsd_calib.certification.outcomes import Counts, Floats, Paired
from fsd_calib.certification.score_test import p_values
from fsd_common.errors import UsageError

PRECISION = 1e-6  # of shares that a plan finds by bisection
_MOST = 10_000_000  # problems; a larger number is not realistic
_POINTS = 150  # values of losses, and of gains, that are summed over
_SPREAD = ndtri((np.arange(9) + 0.5) / 9)  # a normal law in nine equally likely points
_UNLIKELY = 1e-6  # times the largest probability: less likely outcomes are dropped
_TINY = 1e-12
_ROUNDING = 1e-9  # of a share
_CAUTIOUS = 0.84  # standard errors above an estimate, which the truth exceeds with a probability of 20 %


class Cells(NamedTuple):
    """Probabilities of the four paired outcomes of a problem."""

    both_right: float
    lost: float
    gained: float
    both_wrong: float


def cells(accuracy: float, churn: float, retention: float) -> Cells:
    """Returns the probabilities that follow from the target's accuracy, the churn and the true retention.

    Raises:
        UsageError: No outcomes have these three numbers; for instance, losing 2 % takes a churn of at least 2 %.
    """
    lost = (churn + (1 - retention) * accuracy) / 2
    shares = Cells(accuracy - lost, lost, churn - lost, 1 - accuracy - churn + lost)
    if not min(shares) > -_ROUNDING:
        raise UsageError(
            f"accuracy {accuracy}, churn {churn} and retention {retention} contradict each other: "
            f"the shares of outcomes would be {', '.join(f'{n} {x:.4g}' for n, x in shares._asdict().items())}"
        )
    return Cells(*(x if x > _ROUNDING else 0.0 for x in shares))


@lru_cache(maxsize=10_000)  # a search repeats the same counts
def power(*, problems: int, accuracy: float, churn: float, retention: float, wanted: float, delta: float) -> float:
    """Returns the probability that so many problems certify `wanted`, that is, that the p-value is at most `delta`.

    Sums over losses, gains and a coarse law of both_right, which matters less; there is no simulation noise. Absolute
    accuracy q is the retention of a target that is always right: accuracy 1, churn 1 - q, retention q.

    Args:
        problems: Size of the certification part, with one decoding each; for several seeds, and for groups, see
            `independent_worth`.
        accuracy, churn, retention: The truth, as in `cells`.

    Raises:
        UsageError: See `cells`.
    """
    p = cells(accuracy, churn, retention)
    lost, gained, probabilities = _likely_flips(problems, p)
    unflipped = problems - lost - gained
    right = p.both_right / max(p.both_right + p.both_wrong, _TINY)
    deviation = (unflipped * right * (1 - right)) ** 0.5
    step = max(deviation.max() // 2, 1)  # few distinct numbers of solved problems: each takes a table of the exact test
    solved = lost + gained + unflipped * right + deviation * _SPREAD[:, None]  # (9, flips)
    both_right = (step * np.rint(solved / step) - lost - gained).clip(0, unflipped)
    passes = p_values(both_right, lost, gained, unflipped - both_right, wanted) <= delta
    return min(float(passes.mean(0) @ probabilities / probabilities.sum()), 1.0)


def _likely_flips(problems: int, p: Cells) -> tuple[Counts, Counts, Floats]:
    """Returns losses, gains, and their probabilities up to a constant factor."""
    lost, kept = _likely_counts(np.array([problems]), p.lost)
    lost = lost[kept][:, None]
    share = min(p.gained / max(1 - p.lost, _TINY), 1.0)
    gained, kept = _likely_counts(problems - lost, share)
    of_gains = binom.pmf(gained, problems - lost, share) * kept
    probabilities = binom.pmf(lost, problems, p.lost) * of_gains / of_gains.sum(1, keepdims=True)
    likely = probabilities > _UNLIKELY * probabilities.max()
    return np.broadcast_to(lost, gained.shape)[likely], gained[likely], probabilities[likely]


def _likely_counts(problems: Counts, chance: float) -> tuple[Counts, NDArray[np.bool_]]:
    """Returns counts within six standard deviations of the expectation, thinned evenly where they are many.

    Args:
        problems: Numbers that are counted among, (..., 1).

    Returns:
        The counts, (..., points), and which of them are not there already.
    """
    reach = 6 * (problems * chance * (1 - chance)) ** 0.5 + 6
    low, high = np.maximum(problems * chance - reach, 0), np.minimum(problems * chance + reach, problems)
    counts = (low + (high - low) * np.linspace(0, 1, _POINTS)).astype(np.int64)
    return counts, np.diff(counts, axis=-1, prepend=-1) > 0


def problems_needed(
    *, accuracy: float, churn: float, retention: float, wanted: float, delta: float, chance: float = 0.8,
    looks: Looks | None = None,
) -> int | None:  # fmt: skip
    """Returns the number of problems that certify `wanted` with probability `chance`; None: more than ten million.

    It is approximately the smallest one: `power` is not quite monotone, since it comes from counts.

    Args:
        looks: At which shares of the problems outcomes are tested; None: once.
    """
    by_one_look = chance if looks is None else looks.power_for(chance, delta)

    def enough(problems: int) -> bool:
        return power(problems=problems, accuracy=accuracy, churn=churn, retention=retention, wanted=wanted,
                     delta=delta) >= by_one_look  # fmt: skip

    return None if retention <= wanted else fewest(enough)


def fewest(enough: Callable[[int], bool]) -> int | None:
    """Returns the smallest number from which on a condition holds; None: above ten million."""
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
    """Returns the fewest problems that can certify `wanted` in the best case; None: more than ten million.

    In the best case nothing is lost and, where `wanted` >= 1, all that the target fails is gained. For absolute
    accuracy the target is always right: accuracy 1.
    """

    def enough(problems: int) -> bool:
        right = int(problems * accuracy + _ROUNDING)
        wrong = problems - right
        gained = wrong if wanted >= 1 else 0
        return bool(p_values(right, 0, gained, wrong - gained, wanted) <= delta)

    return fewest(enough)


@dataclass(frozen=True)
class Noise:
    """Variances of B - wanted * A (A, B: target and fuzzy rule are right) per problem, of one decoding.

    Args:
        between: Of what all seeds of a problem have in common; in groups, of a problem's share in the sum over one.
        within: Between the seeds of a problem.
    """

    between: float
    within: float

    @classmethod
    def of(cls, paired: Paired, wanted: float) -> Self:
        """Returns the variances by problems with at least two seeds each.

        What is between problems is taken as the end of an interval that it is below with a probability of 80 %, so that
        seeds are not thought to average what they do not. To the problems one is added that flips under all seeds:
        where few flip, those that happen not to flip twice show little.
        """
        z = paired.fuzzy - wanted * paired.target
        of_seeds = z.var(1, ddof=1)
        sums = paired.summed(z.mean(1)) - paired.unit_sizes * z.mean()
        common = np.append(sums**2 - paired.summed(of_seeds) / paired.seeds, 1.0)  # without what seeds add to it
        error = float(np.square(common - common.mean()).sum()) ** 0.5
        within = float(of_seeds.mean())
        total = max(float(common[:-1].sum()) / paired.problems, 0.0) + within
        between = min(max((float(common.sum()) + _CAUTIOUS * error) / (paired.problems + 1), 0.0), total)
        return cls(between, total - between)

    def gain(self, seeds: int) -> float:
        """Returns how many problems with one seed a problem with so many is worth."""
        of_mean = self.between + self.within / seeds
        return 1.0 if of_mean <= _TINY else (self.between + self.within) / of_mean


def independent_worth(paired: Paired, wanted: float) -> float:
    """Returns how many independent problems with one seed a problem is worth: up to k with k seeds, below 1 in groups.

    It is the ratio of the variances of B - wanted * A, of one decoding and of a problem's share in the sum over units.
    Power with several seeds or with groups is approximated by `power` of that many times the problems.
    """
    z = paired.fuzzy - wanted * paired.target
    target, fuzzy = paired.units
    sums = fuzzy - wanted * target - paired.unit_sizes * z.mean()
    of_units = float(sums @ sums) / paired.problems
    if of_units <= _TINY:
        return 1.0
    return min(max(float(z.var()) / of_units, 1 / float(paired.unit_sizes.max())), float(paired.seeds))
