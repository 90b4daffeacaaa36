"""The test of retention with one decoding per problem: the score test, and for few flipped outcomes the exact one."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import bdtr, gammaincinv, gammaln, ndtr, pdtr

from fsd_calib.certification.bounds import largest
from fsd_calib.certification.outcomes import Counts, Floats
from fsd_common.errors import UsageError
from fsd_decoding.profile.certificate import OutcomeCounts

FEW = 12  # from so many flips on, the score test decides; chosen by size and power, see `score_test`
_RANKED_AT = 0.001  # level of the limits used for ranking; the power changes little from .0003 to .05
_DOUBT = 1e-6  # probability of so few flips beyond the searched part of H0
_STEP = 0.05  # step of the search of H0, in the square root of the expected gains
_MISSED = 2e-3  # largest relative error of p between two steps; p is raised by it
_SMALL = 50  # solved problems up to which p must be raised to be monotone
_UNDECIDED = 0.25  # larger p-values become 1 where more than the target's accuracy is wanted
_ROUNDING = 1e-9  # of a rank


def exact_p_values(solved: Counts, lost: Counts, gained: Counts, wanted: Floats) -> Floats:
    """Returns p-values of H0: retention <= wanted, elementwise, for fewer than `FEW` flips.

    Given the number of problems that either solved, losses and gains are trinomial, and H0 is 1 - P(lost) <= wanted (1
    - P(gained)), which leaves one nuisance parameter. p is the largest probability, under H0, of outcomes that rank at
    least as high as the observed one. H0 is searched as far as so few flips are plausible at all, and the probability
    of fewer beyond, 1e-6, is added (Berger and Boos, JASA 89, 1994). So p is valid for any number solved, and any
    ranking.

    The ranking is the same for every `wanted`, so p rises with `wanted` (Buehler, JASA 52, 1957; Lloyd and Kabaila,
    2003). Where nothing flipped, p is wanted ** solved plus the allowances of the search. With better outcomes and the
    target's unchanged p falls: up to 50 solved problems it is raised to the largest p of better outcomes. Beyond,
    raising would change nothing (checked for 175 numbers up to 3,000 and 105 values of `wanted`), except where more
    than the target's accuracy is wanted and p is above 1/4: there p is 1.

    Args:
        solved: Number of problems that the target or the fuzzy rule solved; `lost` and `gained` are among them.
    """
    distinct, where = np.unique(solved + 1j * wanted, return_inverse=True)
    tables = np.array([_table(max(int(pair.real), 1), float(pair.imag)) for pair in distinct])
    return tables.reshape(-1, FEW, FEW)[where.reshape(solved.shape), lost, gained]


@lru_cache(maxsize=4096)
def _table(solved: int, wanted: float) -> Floats:
    """Returns monotone p by losses and gains, (FEW, FEW): the largest p among outcomes with more gains."""
    p = _suprema(solved, wanted)
    if solved <= _SMALL:
        p = p.copy()
        for more in range(1, FEW):
            better = _suprema(solved + more, wanted)[:, more:]
            p[:, : FEW - more] = np.maximum(p[:, : FEW - more], better)
    return np.where((wanted > 1) & (p > _UNDECIDED), 1.0, p)


@lru_cache(maxsize=4096)
def _suprema(solved: int, wanted: float) -> Floats:
    """Returns the exact test's p by losses and gains, (FEW, FEW); 0 where they sum to `FEW` or more."""
    ranked, p = _ranked(), np.zeros((FEW, FEW))
    laws = _null_laws(solved, wanted)
    if laws is None:
        p[ranked.lost[ranked.few], ranked.gained[ranked.few]] = 1.0 if wanted > 1 else _DOUBT
        return p
    q = np.exp(laws[-1]) * solved  # the largest expected losses and gains
    considered = (ranked.lost <= _reach(q[0])) & (ranked.gained <= _reach(q[1])) | ranked.few
    considered &= ranked.lost + ranked.gained <= solved
    lost, gained, limit, few, log_ways = (part[considered] for part in ranked)
    rest = solved - lost - gained
    ways = log_ways + gammaln(solved + 1) - gammaln(rest + 1)
    probabilities = np.exp(laws @ np.stack([lost, gained, rest]).astype(np.float64) + ways).cumsum(1)
    last = np.searchsorted(limit, limit[few] + _ROUNDING, side="right") - 1
    largest = probabilities[:, last].max(0) * (1 + _MISSED) + _DOUBT
    p[lost[few], gained[few]] = np.minimum(largest, 1.0)
    return p


class _Ranked(NamedTuple):
    """Losses and gains in order of rank, best first: all that rank at least as high as any outcome with few flips."""

    lost: Counts
    gained: Counts
    limit: Floats
    few: NDArray[np.bool_]
    log_ways: Floats  # log multinomial terms of losses and gains


@lru_cache(maxsize=1)
def _ranked() -> _Ranked:
    """Ranks outcomes by an upper limit of the difference of two Poisson means, from the exact limits of losses and
    gains.

    Closed form: Zou and Donner, Statistics in Medicine 27, 2008.
    """
    lost, gained = (x.ravel() for x in np.indices((_reach(_most_flips()) + 1,) * 2))
    most, least = gammaincinv(lost + 1, 1 - _RANKED_AT), gammaincinv(np.maximum(gained, 1), _RANKED_AT) * (gained > 0)
    limit = lost - gained + np.hypot(most - lost, gained - least)
    few = lost + gained < FEW
    order = np.argsort(limit, kind="stable")
    order = order[limit[order] <= limit[few].max() + _ROUNDING]
    lost, gained = lost[order], gained[order]
    return _Ranked(lost, gained, limit[order], few[order], -gammaln(lost + 1) - gammaln(gained + 1))


def _null_laws(solved: int, wanted: float) -> Floats | None:
    """Returns logarithms of P(lost), P(gained), P(neither), (laws, 3), on the boundary of H0, with ever more flips.

    None: even the smallest number of flips under H0 makes so few implausible.
    """
    fewest = solved * abs(1 - wanted) / max(wanted, 1.0)
    excess = min(_most_flips(), solved) - fewest
    if excess <= 0:
        return None
    flips = solved - fewest  # beyond those that H0 requires: from none to the most plausible, evenly in the arc sine
    end, whole = math.asin(math.sqrt(excess / flips)), math.sqrt(flips / (1 + wanted))
    more = np.sin(np.linspace(0, end, math.ceil(end * whole / _STEP) + 1)) ** 2 * whole**2 / solved
    gained, lost = more + max(wanted - 1, 0) / wanted, wanted * more + max(1 - wanted, 0)
    return np.log(np.maximum(np.stack([lost, gained, 1 - lost - gained], 1), np.finfo(np.float64).tiny))


@lru_cache(maxsize=1)
def _most_flips() -> float:
    """Returns the expected number of flips at which fewer than `FEW` have probability `_DOUBT`."""
    return float(brentq(lambda mean: pdtr(FEW - 1, mean) - _DOUBT, FEW, 10 * FEW + 100))


def _reach(mean: float) -> int:
    """Returns a count that a Poisson variable exceeds with a probability far below `_DOUBT`."""
    return math.ceil(mean + 7 * math.sqrt(mean) + 8)


_NO_VARIANCE = 1e-12  # of a count; smaller variances are rounding errors


def p_values(
    both_right: ArrayLike, lost: ArrayLike, gained: ArrayLike, both_wrong: ArrayLike, wanted: ArrayLike
) -> Floats:
    """Returns one-sided p-values of H0: retention <= wanted, elementwise over broadcast counts; never NaN.

    From 12 flipped outcomes on it is the score test of the ratio of paired proportions (Nam and Blackwelder, Statistics
    in Medicine 21, 2002; Tang et al., Statistics in Medicine 22, 2003), below that the exact test of `exact_test`. It
    is never less than the p-value of the other test for the nearest outcome in that test's range: with as many more
    gains as make 12 flips, or as many fewer losses as leave 11. So p never rises where the fuzzy rule does better, on
    any problems, and the target as before. Where the target solved all problems there is nothing to gain, and p is
    binomial; where it solved none, p = 1.

    Accuracy of the size, the probability of p <= delta where retention = wanted, summed over the outcomes of some 9,000
    populations (20 to 3,000 problems, any accuracy, churn up to .3 above the least possible; delta .0019, .005, .0076,
    .01, .0304, .05, .1): it is at most 1.08 delta for wanted from .9 to 1, 1.11 delta at .8 and .99 delta above 1, and
    mostly below 1 delta; at .0005, the level of an eighth attempt, it is 1.21 delta in one population (900 problems,
    accuracy .98, wanted 1.02). The excess is due to the discreteness of counts: at wanted 1 and delta .0304 it occurs
    around 20 flips and vanishes with many. Without the correction in `tail`, wanted above 1 has up to 2 delta.

    Choice of 12: of 5, 8, 10, 12, 15, 20 and 30 it is within a percentage point of the highest power at .0304, .0076
    and .0019 over a dozen populations with few flips (500 problems, churn .01, wanted .98, retention 1, at .0076: .65;
    the binomial test of the losses has .47). Its largest size is 1.06 delta at .0304, that of 10 is 1.07. From 20 on,
    up to 5 points of power are lost where the target itself is to be exceeded.
    """
    counts = (np.asarray(c, np.int64) for c in (both_right, lost, gained, both_wrong))
    n11, n10, n01, n00, ratio = np.broadcast_arrays(*counts, np.asarray(wanted, np.float64))
    p = np.maximum(_exact_test(n11 + n10, n10, n01, ratio), _score_test(n11 + n10, n10, n01, ratio))
    perfect = n01 + n00 == 0  # a target that is always right leaves nothing to gain
    p = np.where(perfect, bdtr(n10, n11 + n10, np.clip(1.0 - ratio, 0.0, 1.0)), p)
    return np.where(n11 + n10 > 0, p, 1.0)


def _exact_test(right: Counts, n10: Counts, n01: Counts, ratio: Floats) -> Floats:
    """Returns p of the observed counts or, where too many flipped, of fewer losses; 0 where the gains alone are too
    many."""
    p, few = np.zeros(n10.shape), n01 < FEW
    gained = n01[few]
    p[few] = exact_p_values(right[few] + gained, np.minimum(n10[few], FEW - 1 - gained), gained, ratio[few])
    return p


def _score_test(right: Counts, n10: Counts, n01: Counts, ratio: Floats) -> Floats:
    """Returns p of the observed counts or, where too few flipped, of more gains.

    The sum of Z = B - ratio * A is compared with its moments under the constrained maximum likelihood.
    """
    gained = np.maximum(n01, FEW - n10)
    fuzzy_right = right - n10 + gained
    excess = np.asarray(fuzzy_right - ratio * right, np.float64)
    return tail(excess, *_null_moments(right, fuzzy_right, gained, excess, ratio), ratio, 1.0)


def tail(excess: Floats, variance: Floats, third: Floats, ratio: ArrayLike, step: float) -> Floats:
    """Returns P(a sum with these moments about 0 > excess), by the normal law with the first Edgeworth term.

    The Edgeworth term is used where the sum is skewed to the right, where the normal law alone gives too small a tail.
    With one seed that is where ratio > 1: H0 then requires gains, and they are few; there a continuity correction of
    half a `step`, the granularity of the sum, is needed too. With several seeds it is wherever few problems hold the
    gains and many the losses.
    """
    deviation = np.sqrt(np.maximum(variance, _NO_VARIANCE))
    z = (excess - 0.5 * step * (np.asarray(ratio) > 1.0)) / deviation
    skewness = np.maximum(third, 0.0) / deviation**3
    density = np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    edgeworth = density * skewness * (np.maximum(z, 1.0) ** 2 - 1) / 6
    return np.asarray(np.minimum(ndtr(-z) + edgeworth, 1.0), np.float64)


def _null_moments(
    right: Counts, fuzzy_right: Counts, n01: Counts, excess: Floats, ratio: Floats
) -> tuple[Floats, Floats]:
    """Returns second and third moments of the sum of Z = B - ratio * A, where retention = ratio fits the counts best.

    The second moment is the larger root of a quadratic equation: the maximum likelihood equation of the papers named at
    `p_values`, with the losses expressed by the moment; the number that both failed drops out.
    """
    solved = right + n01  # by either
    least = (1 - ratio) * solved  # losses, were there no gains
    half = (fuzzy_right - 2 * ratio * solved + ratio**2 * right) / 2
    root = np.sqrt(np.maximum(half**2 + least * ratio * excess, 0.0))
    with np.errstate(
        invalid="ignore", divide="ignore"
    ):  # the alternative form of the root where the first would cancel
        second = np.where(half < 0, root - half, least * ratio * excess / (root + half))
    second = np.nan_to_num(second)
    third = (1 - ratio) * (2 * second - ratio * solved)  # as Z is 1 - ratio, -ratio or 1, and its mean is 0
    return np.asarray(second, np.float64), np.asarray(third, np.float64)


def p_value(outcomes: OutcomeCounts, wanted: float) -> float:
    """Returns the one-sided p-value of H0: retention <= wanted; see `p_values`.

    Raises:
        UsageError: The target solved nothing, or `wanted` is not a positive number.
    """
    outcomes.require_solved()
    if not 0 < wanted < math.inf:
        raise UsageError(f"the wanted retention is {wanted}; it must be above 0 (0.98 keeps 98 %)")
    o = outcomes
    return float(p_values(o.both_right, o.lost, o.gained, o.both_wrong, wanted))


def lower_bound(outcomes: OutcomeCounts, delta: float) -> float:
    """Returns the largest retention r with `p_value(outcomes, r) <= delta`; 0 where there is none.

    Raises:
        UsageError: The target solved nothing, or `delta` is not in (0, 1).
    """
    outcomes.require_solved()
    return largest(lambda wanted: p_value(outcomes, wanted), delta)
