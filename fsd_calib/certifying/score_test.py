"""The score test of the ratio of paired proportions, one decoding a problem: p-values and the bound.

Knows counts. Knows no order of testing, and no decodings with several seeds (see `seeds_test`).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import bdtr, ndtr

from fsd_calib.certifying.bound import largest
from fsd_calib.certifying.outcomes import Counts, Floats, Outcomes, require_solved
from fsd_decoding.errors import UsageError

FEW = 5  # fewer flipped problems than this: the normal approximation gives way to an exact test
_NO_VARIANCE = 1e-12  # of a count; below is rounding


def p_values(
    both_right: ArrayLike, lost: ArrayLike, gained: ArrayLike, both_wrong: ArrayLike, wanted: ArrayLike
) -> Floats:
    """One-sided p-values of H0: retention <= wanted, elementwise over broadcast counts; never NaN.

    The score test of the ratio of paired proportions (Nam and Blackwelder, Statistics in Medicine 21, 2002;
    Tang et al., Statistics in Medicine 22, 2003); where fewer than 5 outcomes flipped, or the target solved
    all, an exact binomial test of the losses alone. Where the target solved nothing, p = 1.

    How far to trust it: the size, which is the chance of p <= delta where retention = wanted, summed exactly
    over the outcomes of some 27,000 populations (50 to 800 problems, for wanted above 1 10 to 500; any accuracy;
    churn up to .2 above the least possible), is at most

        delta                   .005    .01     .05     .1
        wanted .8 to 1         1.04    1.08    1.09    1.25   times delta
        wanted 1.005 to 1.2     .90     .93     .99     .99   times delta

    and mostly below 1. The excess is the discreteness of counts, gone with many flips. That the data choose the
    test does not raise it: the score test alone has 1.24 delta at .05 and 1.87 at .1. Without the correction in
    `tail`, wanted above 1 has up to 2 delta. Below 50 problems all of it grows: 1.5 delta around 10.
    """
    counts = np.broadcast_arrays(*(np.asarray(c, np.int64) for c in (both_right, lost, gained, both_wrong)))
    n11, n10, n01, n00 = counts
    ratio = np.asarray(wanted, np.float64)
    exact = (n10 + n01 < FEW) | (n01 + n00 == 0)  # a target that is always right leaves nothing to gain
    p = np.where(exact, _exact_test(n11, n10, ratio), _score_test(n11, n10, n01, n00, ratio))
    return np.where(n11 + n10 > 0, p, 1.0)


def _exact_test(n11: Counts, n10: Counts, ratio: Floats) -> Floats:
    """P(at most n10 losses among the target's n11 + n10), at the smallest chance of a loss under H0.

    retention = 1 - P(lost | target right) + P(gained) / P(target right) >= 1 - P(lost | target right), so
    retention <= ratio implies P(lost | target right) >= 1 - ratio: conservative by what gains would give.
    """
    return np.asarray(bdtr(n10, n11 + n10, np.clip(1.0 - ratio, 0.0, 1.0)), np.float64)


def _score_test(n11: Counts, n10: Counts, n01: Counts, n00: Counts, ratio: Floats) -> Floats:
    """Z = B - ratio A, summed, against its moments under the constrained maximum likelihood."""
    excess = np.asarray(n11 + n01 - ratio * (n11 + n10), np.float64)
    variance, third = _null_moments(n11, n10, n01, n00, ratio)
    return tail(excess, variance, third, ratio, 1.0)


def tail(excess: Floats, variance: Floats, third: Floats, ratio: ArrayLike, step: float) -> Floats:
    """P(a sum with these moments about 0 > excess), by the normal law.

    ratio > 1: H0 then demands gains, few and right-skewed, of which the normal law makes too little in the
    tail; a continuity correction of half a `step`, by which sums differ, and the first Edgeworth term mend that.
    """
    above = np.asarray(ratio) > 1.0
    deviation = np.sqrt(np.maximum(variance, _NO_VARIANCE))
    z = (excess - 0.5 * step * above) / deviation
    skewness = np.maximum(third, 0.0) / deviation**3
    density = np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    edgeworth = above * density * skewness * np.maximum(z * z - 1, 0.0) / 6
    return np.asarray(np.minimum(ndtr(-z) + edgeworth, 1.0), np.float64)


def _null_moments(n11: Counts, n10: Counts, n01: Counts, n00: Counts, ratio: Floats) -> tuple[Floats, Floats]:
    """Second and third moments of the sum of Z = B - ratio A, where retention = ratio fits the counts best.

    The best P(lost) is the larger root of a quadratic equation; both_wrong keeps its share. Source: DESIGN
    section 10, from the papers named at `p_values`.
    """
    solved = n11 + n10 + n01  # by either
    n = np.maximum(solved + n00, 1)
    a = n * (1 + ratio)
    b = (n11 + n10) * ratio**2 - (n11 + n01 + 2 * n10)
    least = (1 - ratio) * solved / n
    p_lost = (-b + np.sqrt(np.maximum(b * b - 4 * a * n10 * least, 0.0))) / (2 * a)
    p_gained = (p_lost - least) / np.maximum(ratio, 1.0)  # exact from ratio = 1 on, where `third` is asked for
    p_both = solved / n - p_lost - p_gained
    variance = a * p_lost - n * least
    third = n * (p_both * (1 - ratio) ** 3 - p_lost * ratio**3 + p_gained)
    return np.asarray(variance, np.float64), np.asarray(third, np.float64)


def p_value(outcomes: Outcomes, wanted: float) -> float:
    """One-sided p-value of H0: retention <= wanted; see `p_values`.

    Raises:
        UsageError: the target solved nothing, or `wanted` is no positive number.
    """
    require_solved(outcomes)
    if not 0 < wanted < math.inf:
        raise UsageError(f"the wanted retention is {wanted}; it must be above 0 (0.98 keeps 98 %)")
    o = outcomes
    return float(p_values(o.both_right, o.lost, o.gained, o.both_wrong, wanted))


def lower_bound(outcomes: Outcomes, delta: float) -> float:
    """The largest retention r with `p_value(outcomes, r) <= delta`; 0 where there is none.

    Raises:
        UsageError: the target solved nothing, or `delta` is not in (0, 1).
    """
    require_solved(outcomes)
    return largest(lambda wanted: p_value(outcomes, wanted), delta)
