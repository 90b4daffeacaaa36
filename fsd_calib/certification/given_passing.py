"""Bounds that hold given that the claim passed, which is when they are printed.

Who looks at outcomes only where they passed a test sees them better than they are: of settings that keep exactly 99 %
and passed a test for 98 %, every sixth measured bound lies above the truth. So the law of what passes is inverted
(Weinstein, Fithian and Benjamini, JASA 108, 2013). The closer a result is to failing, the less it shows beyond the
claim itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import bdtr, log_ndtr, ndtri

from fsd_calib.certification.bounds import at_most, largest
from fsd_calib.certification.claim import Claim
from fsd_calib.certification.harm import difference_of
from fsd_calib.certification.multi_seed import FEW
from fsd_calib.certification.outcomes import Paired

_PRINTED = 3  # what shares the probability of error: lower bounds, which are wrong together, harm, and an upper end
_WAYS = 2  # to find a bound, of which the tighter one is printed
_HALVINGS = 60
_FARTHEST = 60.0  # standard deviations


@dataclass(frozen=True)
class GivenPassing:
    """Bounds that together hold with the claim's confidence among certificates that are printed.

    Attributes:
        kept: Lower bound of what was claimed, retention or accuracy.
        harm: Upper bound of the share of the target's right answers that is lost.
        difference: Interval of the fuzzy rule's accuracy minus the target's; None: of a claim of plain accuracy, whose
            test says nothing of the target.
    """

    kept: float
    harm: float
    difference: tuple[float, float] | None


def given_passing(paired: Paired, claim: Claim, delta: float) -> GivenPassing:
    """Returns the bounds of outcomes that passed.

    In simulations (benchmarks/validity.py) they are wrong together in at most .023 of 400 certificates of a population,
    where .05 is allowed. The upper end of the difference needs no correction: outcomes look better than they are, not
    worse.

    Args:
        paired: Outcomes whose p-value is at most `delta`.
    """
    share, more = (1 - claim.confidence) / _PRINTED, _more_losses(paired, claim, delta)
    kept = _kept(paired, claim, delta, share / _WAYS, more)
    difference = None
    if claim.acc == "retention":
        low = (kept - 1) * float(paired.units[0].sum()) / paired.problems
        difference = max(low, -1.0), difference_of(paired, 1 - 2 * share)[2]
    return GivenPassing(kept, _harm(paired, delta, share / _WAYS, more), difference)


def _kept(paired: Paired, claim: Claim, delta: float, share: float, more: int) -> float:
    """Returns the better of two bounds, each of which is wrong in a `share` of what passes.

    One is the value at which outcomes that pass are as good as these, or better, with probability `share`: at a value r
    that is p(r) of these outcomes over p(r) of those that only just pass, with `more` losses. Below what is wanted
    p-values are too small to be known well: there the test's statistic is taken as a normal variable, of which only
    what is above its critical value is seen. The other is the usual bound at `share` times `delta`: where the claim is
    true outcomes pass with a probability of `delta` at least.
    """
    wanted, only_just = claim.wanted, _with_losses(paired, more)
    assert wanted is not None
    usual = claim.bound(paired, share * delta)
    p = claim.p_value(paired)
    if p > share * delta:
        against, fuzzy = (float(each.sum()) for each in _whole(paired, claim).units)
        observed, critical = -float(ndtri(p)), -float(ndtri(delta))
        deviation = (fuzzy / (against + claim.dropped) - wanted) / observed
        if deviation <= 0:  # betting was sure before the last losses
            return usual
        mean = max(_truncated_mean(observed, critical, share), observed + float(ndtri(share * delta)))
        return max(wanted + deviation * mean, usual)

    def unlikely(value: float) -> float:
        there = replace(claim, wanted=value)
        just = there.p_value(only_just)
        return there.p_value(paired) / just if just else 0.0

    most = 1.0 if claim.acc == "absolute" else math.inf
    beyond = largest(lambda value: 1.0 if value > most else 0.0 if value <= wanted else unlikely(value), share)
    return max(beyond, usual)


def _whole(paired: Paired, claim: Claim) -> Paired:
    return paired.against_perfect() if claim.acc == "absolute" else paired


def _truncated_mean(observed: float, critical: float, share: float) -> float:
    """Returns the mean at which a normal variable of variance 1, given that it is at least `critical`, reaches
    `observed` with probability `share`; relative to the mean where the claim is only just false, which is 0."""
    low, high = observed - _FARTHEST, observed + _FARTHEST
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        reached = log_ndtr(middle - observed) - log_ndtr(middle - critical)
        low, high = (low, middle) if reached > math.log(share) else (middle, high)
    return low


def _harm(paired: Paired, delta: float, share: float, more: int) -> float:
    """Returns the better of two bounds of the harm rate, as `_kept` does.

    One is the rate at which so few losses, given that there are no more than pass, have probability `share`: given what
    the target solved and what was gained, passing depends on the losses alone, which are binomial, in units that are
    independent of each other. The other is Clopper and Pearson's bound at `share` times `delta`.
    """
    unit = _lost_together(paired)
    lost = math.ceil((paired.target & ~paired.fuzzy).sum() / unit)
    right, most = max(round(paired.target.sum() / unit), lost, 1), lost + math.floor(more / unit)
    low, high = 0.0, at_most(lost, right, share * delta)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        few = bdtr(lost, right, middle) > share * bdtr(most, right, middle)
        low, high = (middle, high) if few else (low, middle)
    return high


def _lost_together(paired: Paired) -> float:
    """Returns how many losses, of problems and seeds, count as one.

    These are all seeds of a problem, and in groups as many more as the variance of their losses is larger than that of
    independent problems. Where few groups lost anything, they are a whole group.
    """
    if paired.groups is None:
        return float(paired.seeds)
    right, lost = paired.units[0], replace(paired, fuzzy=paired.target & ~paired.fuzzy).units[1]
    if np.count_nonzero(lost) < FEW:
        return float(paired.seeds * paired.unit_sizes.max())
    share = lost.sum() / right.sum()
    excess = lost - share * right
    return float(paired.seeds * max(1.0, excess @ excess / (right.sum() * share * (1 - share))))


def _more_losses(paired: Paired, claim: Claim, delta: float) -> int:
    """Returns how many more problems and seeds that both solve may be lost, and the claim still passes."""
    low, high = 0, int((paired.target & paired.fuzzy).sum()) + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if claim.p_value(_with_losses(paired, middle)) <= delta else (low, middle)
    return low


def _with_losses(paired: Paired, more: int) -> Paired:
    """Returns the grades with so many more losses, of all seeds of a problem before those of the next."""
    fuzzy = paired.fuzzy.copy()
    fuzzy.flat[np.flatnonzero(paired.target & paired.fuzzy)[:more]] = False
    return replace(paired, fuzzy=fuzzy)
