"""The harm rate, and the difference in accuracy, of a fuzzy rule, with their bounds and intervals."""

from __future__ import annotations

from dataclasses import dataclass, replace

from scipy.special import ndtri

from fsd_calib.certification import betting_test, bounds
from fsd_calib.certification.bounds import largest
from fsd_calib.certification.claim import Claim
from fsd_calib.certification.outcomes import Paired


@dataclass(frozen=True)
class Harm:
    """The share of the problems solved by the target that the fuzzy rule loses.

    Attributes:
        rate: lost / (both right + lost).
        at_most: Upper confidence bound of the rate, at the certificate's confidence.
    """

    rate: float
    at_most: float


def harm_of(paired: Paired, claim: Claim, delta: float) -> Harm | None:
    """Returns the harm of the outcomes that a claim was decided on, at 1 - `delta`; None: the target solved nothing.

    With one seed and no groups, losses are binomial among the problems that the target solved, and the bound has the
    level of the look that decided. Otherwise the rate is 1 - the retention of a rule that gains nothing, bounded by
    betting: the problem or group is the unit, and the bound is valid at any time.
    """
    lost, target_solved = paired.outcomes.lost, paired.outcomes.both_right + paired.outcomes.lost
    if not target_solved:
        return None
    rate = lost / target_solved
    independent = paired.seeds == 1 and paired.groups is None
    if independent and claim.guarantee == "population":
        return Harm(rate, bounds.at_most(lost, target_solved, claim.level(paired.problems, delta)))
    # An earlier moment may have given a smaller bound than the rate.
    return Harm(rate, max(1 - _both_solved_share(paired, claim, delta), rate))


def _both_solved_share(paired: Paired, claim: Claim, delta: float) -> float:
    """Returns a lower bound of the share of the target's solved problems that both solve."""
    both = replace(paired, fuzzy=paired.target & paired.fuzzy)
    whole = claim.problems if claim.guarantee == "dataset" else None
    return largest(lambda share: betting_test.p_value(both, share, whole), delta)


def difference_of(paired: Paired, confidence: float) -> tuple[float, float, float]:
    """Returns the difference in accuracy, fuzzy rule minus target, and the ends of its two-sided interval.

    The interval is the adjusted Wald interval of paired proportions, which adds one loss and one gain: Bonett and
    Price, Journal of Educational and Behavioral Statistics 37, 2012. The problem or group is the unit, and the added
    loss and gain are of problems, with all seeds.

    Args:
        paired: A sample whose size did not depend on the outcomes.
    """
    centre, squares, n = change_of(paired)
    reach = float(ndtri((1 + confidence) / 2)) * squares**0.5 / n
    return paired.accuracy - paired.target_accuracy, max(centre - reach, -1.0), min(centre + reach, 1.0)


def change_of(paired: Paired) -> tuple[float, float, int]:
    """Returns the mean of fuzzy rule minus target, the sum of squares around it, and the number of problems, with one
    loss and one gain more than there are."""
    target, fuzzy = paired.units
    change, n = fuzzy - target, paired.problems + 2
    centre = float(change.sum()) / n
    residual = change - centre * paired.unit_sizes
    return centre, float(residual @ residual) + 2 * (1 + centre**2), n


def retention_interval(paired: Paired, confidence: float) -> tuple[float, float] | None:
    """Returns the interval of accuracy / target's accuracy by the delta method; None: the target solved nothing.

    The problem or group is the unit, whatever the number of seeds. As in `difference_of`, one loss and one gain are
    added, so that the interval has a width where no outcome flipped.
    """
    target, fuzzy = paired.units
    if not target.any():
        return None
    ratio = float(fuzzy.sum() / target.sum())
    residual = fuzzy - ratio * target
    squares = float(residual @ residual) + 1 + ratio**2
    reach = float(ndtri((1 + confidence) / 2)) * squares**0.5 / float(target.sum())
    return max(ratio - reach, 0.0), ratio + reach
