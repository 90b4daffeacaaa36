"""An approximate two-sided interval of a retention, for charts: certificates rest on tests, not on this."""

from __future__ import annotations

from scipy.special import ndtri

from fsd_calib.certification.outcomes import Paired


def retention_interval(paired: Paired, confidence: float) -> tuple[float, float] | None:
    """Returns the interval of accuracy / target's accuracy by the delta method; None: the target solved nothing.

    The problem is the unit, whatever the number of seeds. As in `difference_of`, one loss and one gain are added, so
    that the interval has a width where no outcome flipped.
    """
    target, fuzzy = paired.target.mean(1), paired.fuzzy.mean(1)  # (problems,)
    if not target.any():
        return None
    ratio = float(fuzzy.sum() / target.sum())
    residual = fuzzy - ratio * target
    squares = float(residual @ residual) + 1 + ratio**2
    reach = float(ndtri((1 + confidence) / 2)) * squares**0.5 / float(target.sum())
    return max(ratio - reach, 0.0), ratio + reach
