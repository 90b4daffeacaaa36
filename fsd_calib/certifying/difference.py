"""The difference in accuracy, fuzzy rule less target, with an interval that may be read beside a retention."""

from __future__ import annotations

from typing import NamedTuple

from scipy.special import ndtri

from fsd_calib.certifying.outcomes import Paired


class Difference(NamedTuple):
    """low, high: a two-sided interval."""

    value: float
    low: float
    high: float


def difference_of(paired: Paired, confidence: float) -> Difference:
    """The adjusted Wald interval of paired proportions, which counts one loss and one gain more than there were
    (Bonett and Price, Journal of Educational and Behavioral Statistics 37, 2012).

    With several seeds the problem is the unit, a loss or gain being one with all of them. `paired` must be a sample
    whose size the outcomes did not decide.
    """
    change = paired.fuzzy.mean(1) - paired.target.mean(1)  # (problems,)
    n = paired.problems + 2
    centre = float(change.sum()) / n
    variance = (float(change @ change) + 2) / n - centre**2
    reach = float(ndtri((1 + confidence) / 2)) * (variance / n) ** 0.5
    return Difference(float(change.mean()), max(centre - reach, -1.0), min(centre + reach, 1.0))
