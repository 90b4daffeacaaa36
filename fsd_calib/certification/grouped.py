"""The test of retention where problems come in groups, such as the questions about one document: the group is the unit.

Problems of a group flip together, so a thousand of them say less than a thousand others: with five questions a document
and an intra-class correlation of .3, a test that takes them as independent is wrong twice as often as it says.
"""

from __future__ import annotations

import numpy as np
from scipy.special import stdtr

from fsd_calib.certification import betting_test
from fsd_calib.certification.multi_seed import FEW, null_moments
from fsd_calib.certification.outcomes import Floats, Paired

_NONE = 1e-12  # of a variance


def p_value(paired: Paired, wanted: float) -> float:
    """Returns the one-sided p-value of H0: retention <= wanted, of outcomes with groups.

    Z is a group's sum of B - wanted * A, with a problem's mean over its seeds. The law with E[Z] = 0 that fits best
    gives the variance of the whole sum, as in `multi_seed`. That is not enough where groups differ in size: few large
    ones, which happened not to flip, may be most of what varies. So the variance is at least what all groups together
    show for their sizes. The sum over it has Student's law, see `_freedom`. Where fewer than 5 groups flipped, or fewer
    than two count, it is the betting test.

    Size, by 2,500 to 6,000 draws each (some also in benchmarks/validity.py): groups of 5 and 10, of geometric,
    lognormal and Zipf's sizes, of the sizes of MMLU's subjects, and pairs beside three groups of 60, with intra-class
    correlations of flips of .02 to .3 and 40 to 400 groups, have at most .044 at .045, and .002 at .003. By the
    variance of the sums alone, with as many degrees of freedom as groups that flipped, they have up to .154 and .040.
    """
    target, fuzzy = paired.units
    sums = fuzzy - wanted * target
    if not target.any():
        return 1.0
    flipped = int(np.count_nonzero(paired.unit_flips))
    expected = _by_size(paired, wanted)
    freedom = _freedom(sums, expected, flipped)
    if flipped < FEW or freedom <= 0:
        return betting_test.p_value(paired, wanted)
    ends = np.array([min(sums.min(), -wanted), max(sums.max(), 1.0)])  # of what a group plausibly shows
    second, _ = null_moments(np.append(np.ones(len(sums)), [0, 0]), np.append(sums, ends))
    step = 0.5 / paired.seeds * (wanted > 1)  # as in `score_test.tail`
    return float(stdtr(freedom, -(float(sums.sum()) - step) / max(float(second), float(expected.sum())) ** 0.5))


def _by_size(paired: Paired, wanted: float) -> Floats:
    """Returns the variances of the groups' sums, (groups,), that follow from their sizes.

    A sum of s problems has s times the variance of one and s (s - 1) times the covariance of two of a group. That is a
    mean over groups, of equal weights or of s - 1, whichever is larger: neither leaves it to the largest groups.
    """
    sizes, z = paired.unit_sizes, paired.fuzzy.mean(1) - wanted * paired.target.mean(1)
    target, fuzzy = paired.units
    squares = paired.summed(z**2)
    pairs = sizes * (sizes - 1)
    several = pairs > 0
    between = ((fuzzy - wanted * target) ** 2 - squares)[several] / pairs[several]
    means = (np.average(between, weights=weights) for weights in (None, sizes[several] - 1)) if several.any() else ()
    covariance = max((0.0, *map(float, means)))
    return np.asarray(sizes * squares.sum() / paired.problems + pairs * covariance, np.float64)


def _freedom(sums: Floats, expected: Floats, flipped: int) -> float:
    """Returns the degrees of freedom: the least of what three things leave.

    These are the groups that flipped, half of them for either direction; how far the squares of the sums differ
    (Satterthwaite, Biometrics Bulletin 2, 1946); and the number of equal groups that would vary as these do.
    """
    squares = sums**2
    spread = max(float(squares @ squares) - float(squares.sum()) ** 2 / len(sums), _NONE)
    alike = float(expected.sum()) ** 2 / max(float(expected @ expected), _NONE)
    return min(flipped / 2 - 1, 2 * float(squares.sum()) ** 2 / spread, alike - 1)
