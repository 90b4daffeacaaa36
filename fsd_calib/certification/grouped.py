"""The test of retention where problems come in groups, such as the questions about one document: the group is the unit.

Problems of a group flip together, so a thousand of them say less than a thousand others: with five questions a document
and an intra-class correlation of .3, a test that takes them as independent is wrong twice as often as it says.
"""

from __future__ import annotations

import numpy as np
from scipy.special import stdtr

from fsd_calib.certification import betting_test
from fsd_calib.certification.multi_seed import FEW, null_moments
from fsd_calib.certification.outcomes import Paired


def p_value(paired: Paired, wanted: float) -> float:
    """Returns the one-sided p-value of H0: retention <= wanted, of outcomes with groups.

    Z is a group's sum of B - wanted * A, with a problem's mean over its seeds. The law with E[Z] = 0 that fits best
    gives the variance of the whole sum, as in `multi_seed`; the sum over it has Student's law with one degree of
    freedom less than groups that flipped, since those alone tell the variance. Where fewer than 5 flipped, it is the
    betting test.

    Size (benchmarks/validity.py): of 13 populations with 5 or 10 problems a group, intra-class correlations of flips of
    .1 and .3, and 66 to 420 groups none exceeds .045 by three standard errors of 2,000 draws. With more draws 66 groups
    of 10 that correlate by .3 have .051 and .053 at churn .04 and .06: with few groups the test is a little above its
    level.
    """
    target, fuzzy = paired.units
    flipped = int(np.count_nonzero(paired.unit_flips))
    if flipped < FEW:
        return float(betting_test.p_values(*paired.bounded_units, wanted))
    z = fuzzy - wanted * target
    ends = np.array([min(z.min(), -wanted), max(z.max(), 1.0)])  # of what a group plausibly shows
    second, _ = null_moments(np.append(np.ones(len(z)), [0, 0]), np.append(z, ends))
    step = 0.5 / paired.seeds * (wanted > 1)  # as in `score_test.tail`
    return float(stdtr(flipped - 1, -(float(z.sum()) - step) / float(second) ** 0.5)) if target.any() else 1.0
