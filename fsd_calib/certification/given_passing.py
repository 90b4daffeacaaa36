"""Bounds that hold given that the claim passed, which is when they are printed.

Who looks at outcomes only where they passed a test sees them better than they are: of settings that keep exactly 99 %
and passed a test for 98 %, every sixth measured bound lies above the truth. So the test's statistic is taken as what it
is then, a normal variable cut off at the level of the test, and its law inverted (Weinstein, Fithian and Benjamini,
JASA 108, 2013). The closer a result is to failing, the less it shows beyond the claim itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import log_ndtr, ndtri
from scipy.stats import binom

from fsd_calib.certification.claim import Claim
from fsd_calib.certification.harm import difference_of
from fsd_calib.certification.outcomes import Floats, Paired

_PRINTED = 3  # what shares the probability of error: lower bounds, which are wrong together, harm, and an upper end
_HALVINGS = 60
_FARTHEST = 60.0  # standard deviations
_LEAST = 1e-300  # of a p-value, and of a variance


@dataclass(frozen=True)
class GivenPassing:
    """Bounds that together hold with the claim's confidence among certificates that are printed.

    Attributes:
        kept: Lower bound of what was claimed, retention or accuracy.
        harm: Upper bound of the share of the target's right answers that is lost.
        difference: Interval of the fuzzy rule's accuracy minus the target's.
    """

    kept: float
    harm: float
    difference: tuple[float, float]


def given_passing(paired: Paired, claim: Claim, delta: float) -> GivenPassing:
    """Returns the bounds of outcomes that passed.

    In simulations (benchmarks/validity.py) they are wrong together in at most .035 of 400 certificates of a population,
    where .05 is allowed. The upper end of the difference needs no correction: outcomes look better than they are, not
    worse.

    Args:
        paired: Outcomes whose p-value is at most `delta`.
    """
    wanted, share = claim.wanted, (1 - claim.confidence) / _PRINTED
    assert wanted is not None
    observed, critical = (-float(ndtri(max(p, _LEAST))) for p in (claim.p_value(paired), delta))
    whole = paired.against_perfect() if claim.acc == "absolute" else paired
    (against, fuzzy), (target, _) = whole.units, paired.units
    beyond = _deviation(fuzzy - wanted * against) * _truncated_mean(observed, critical, share)  # right answers
    return GivenPassing(
        max(wanted + beyond / float(against.sum()), 0.0),
        _harm(paired, claim, delta, share),
        (
            max((wanted * float(against.sum()) + beyond - float(target.sum())) / paired.problems, -1.0),
            difference_of(paired, 1 - 2 * share)[2],
        ),
    )


def _truncated_mean(observed: float, critical: float, share: float) -> float:
    """Returns the mean at which a normal variable of variance 1, given that it is at least `critical`, reaches
    `observed` with probability `share`; relative to the mean where the claim is only just false, which is 0."""
    low, high = observed - _FARTHEST, observed + _FARTHEST
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        reached = log_ndtr(middle - observed) - log_ndtr(middle - critical)
        low, high = (low, middle) if reached > math.log(share) else (middle, high)
    return low


def _deviation(values: Floats) -> float:
    """Returns the standard deviation of the sum of a value of every problem."""
    return math.sqrt(max(float(values @ values), _LEAST))


def _harm(paired: Paired, claim: Claim, delta: float, share: float) -> float:
    """Returns the harm rate at which so few losses, given that there are no more than pass, have probability `share`.

    Given what the target solved and what was gained, passing depends on the losses alone, which are binomial.
    """
    unit = paired.seeds
    right, lost = round(paired.target.sum() / unit), math.ceil((paired.target & ~paired.fuzzy).sum() / unit)
    most = lost + _more_losses(paired, claim, delta)
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        with np.errstate(invalid="ignore"):  # where both are impossible
            few = binom.logcdf(lost, right, middle) - binom.logcdf(most, right, middle)
        low, high = (middle, high) if few > math.log(share) else (low, middle)
    return high


def _more_losses(paired: Paired, claim: Claim, delta: float) -> int:
    """Returns how many more of the problems that both solve may be lost, with all seeds, and the claim still passes."""
    both = np.flatnonzero((paired.target & paired.fuzzy).all(1))
    low, high = 0, len(both) + 1
    while high - low > 1:
        middle = (low + high) // 2
        fuzzy = paired.fuzzy.copy()
        fuzzy[both[:middle]] = False
        low, high = (middle, high) if claim.p_value(replace(paired, fuzzy=fuzzy)) <= delta else (low, middle)
    return low
