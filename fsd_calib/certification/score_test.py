"""The test of retention with one decoding a problem, from counts of paired outcomes: p-values and the bound."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import bdtr, ndtr

from fsd_calib.certification.bounds import largest
from fsd_calib.certification.exact_test import FEW, exact_p_values
from fsd_calib.certification.outcomes import Counts, Floats, Outcomes, require_solved
from fsd_decoding.errors import UsageError

_NO_VARIANCE = 1e-12  # of a count; below is rounding


def p_values(
    both_right: ArrayLike, lost: ArrayLike, gained: ArrayLike, both_wrong: ArrayLike, wanted: ArrayLike
) -> Floats:
    """One-sided p-values of H0: retention <= wanted, elementwise over broadcast counts; never NaN.

    From 12 flipped outcomes on the score test of the ratio of paired proportions (Nam and Blackwelder, Statistics in
    Medicine 21, 2002; Tang et al., Statistics in Medicine 22, 2003), below that the exact test of `few_flips`, and
    never less than the other one has for the nearest outcome that is its own: for as many more gains as make 12
    flips, or as many fewer losses as leave 11. So where the fuzzy rule does better, on any problems, and the target
    as before, p is never larger. Where the target solved all there is nothing to gain, and p is binomial; where it
    solved nothing, p = 1.

    How far to trust it: the size, which is the chance of p <= delta where retention = wanted, summed over the
    outcomes of some 9,000 populations (20 to 3,000 problems, any accuracy, churn up to .3 above the least possible;
    delta .0019, .005, .0076, .01, .0304, .05, .1), is at most 1.08 delta for wanted from .9 to 1, 1.11 delta at .8
    and .99 delta above 1, and mostly below 1; at .0005, the level of an eighth attempt, it is 1.21 delta in one (900
    problems, accuracy .98, wanted 1.02). The excess is the discreteness of counts: at 1 and .0304 it is there
    around 20 flips, and gone with many. Without the correction in `tail`, wanted above 1 has up to 2 delta.

    Why 12: of 5, 8, 10, 12, 15, 20 and 30 it is within a point of the most power at .0304, .0076 and .0019 over a
    dozen populations with few flips (500 problems, churn .01, wanted .98, retention 1, at .0076: .65; the binomial
    test of the losses has .47), and its excess is 1.06 at .0304, that of 10 is 1.07. From 20 on up to 5 points are
    lost where the target itself is to be beaten.
    """
    counts = (np.asarray(c, np.int64) for c in (both_right, lost, gained, both_wrong))
    n11, n10, n01, n00, ratio = np.broadcast_arrays(*counts, np.asarray(wanted, np.float64))
    p = np.maximum(_exact_test(n11 + n10, n10, n01, ratio), _score_test(n11 + n10, n10, n01, ratio))
    perfect = n01 + n00 == 0  # a target that is always right leaves nothing to gain
    p = np.where(perfect, bdtr(n10, n11 + n10, np.clip(1.0 - ratio, 0.0, 1.0)), p)
    return np.where(n11 + n10 > 0, p, 1.0)


def _exact_test(right: Counts, n10: Counts, n01: Counts, ratio: Floats) -> Floats:
    """Of what was seen or, where too many flipped, of fewer losses; 0 where the gains alone are too many."""
    p, few = np.zeros(n10.shape), n01 < FEW
    gained = n01[few]
    p[few] = exact_p_values(right[few] + gained, np.minimum(n10[few], FEW - 1 - gained), gained, ratio[few])
    return p


def _score_test(right: Counts, n10: Counts, n01: Counts, ratio: Floats) -> Floats:
    """Of what was seen or, where too few flipped, of more gains.

    Z = B - ratio A, summed, against its moments under the constrained maximum likelihood.
    """
    gained = np.maximum(n01, FEW - n10)
    kept = right - n10 + gained
    excess = np.asarray(kept - ratio * right, np.float64)
    return tail(excess, *_null_moments(right, kept, gained, excess, ratio), ratio, 1.0)


def tail(excess: Floats, variance: Floats, third: Floats, ratio: ArrayLike, step: float) -> Floats:
    """P(a sum with these moments about 0 > excess), by the normal law and, where it is skewed to the right, the first
    Edgeworth term, without which the tail is too small.

    With one seed that is where ratio > 1: H0 then demands gains, and they are few. There a continuity correction of
    half a `step`, by which sums differ, is needed too. With several seeds it is wherever few problems hold the gains
    and many the losses.
    """
    deviation = np.sqrt(np.maximum(variance, _NO_VARIANCE))
    z = (excess - 0.5 * step * (np.asarray(ratio) > 1.0)) / deviation
    skewness = np.maximum(third, 0.0) / deviation**3
    density = np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    edgeworth = density * skewness * (np.maximum(z, 1.0) ** 2 - 1) / 6
    return np.asarray(np.minimum(ndtr(-z) + edgeworth, 1.0), np.float64)


def _null_moments(right: Counts, kept: Counts, n01: Counts, excess: Floats, ratio: Floats) -> tuple[Floats, Floats]:
    """Second and third moments of the sum of Z = B - ratio A, where retention = ratio fits the counts best.

    The second is the larger root of the quadratic equation in DESIGN section 10 (from the papers named at `p_values`),
    with the losses put in terms of it; how many both failed drops out.
    """
    solved = right + n01  # by either
    least = (1 - ratio) * solved  # losses, were there no gains
    half = (kept - 2 * ratio * solved + ratio**2 * right) / 2
    root = np.sqrt(np.maximum(half**2 + least * ratio * excess, 0.0))
    with np.errstate(invalid="ignore", divide="ignore"):  # the other form of the root where the first would cancel
        second = np.where(half < 0, root - half, least * ratio * excess / (root + half))
    second = np.nan_to_num(second)
    third = (1 - ratio) * (2 * second - ratio * solved)  # as Z is 1 - ratio, -ratio or 1, and its mean is 0
    return np.asarray(second, np.float64), np.asarray(third, np.float64)


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
