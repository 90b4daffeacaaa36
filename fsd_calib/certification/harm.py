"""The harm rate, and the difference in accuracy, of a fuzzy rule, with their bounds and intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from scipy.special import bdtr, ndtri

from fsd_calib.certification import betting_test
from fsd_calib.certification.bounds import largest
from fsd_calib.certification.claim import Claim
from fsd_calib.certification.looks import combined
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
        return Harm(rate, max(_most_lost(paired, claim, claim.level(paired.problems, delta)), rate))
    # An earlier moment may have given a smaller bound than the rate.
    return Harm(rate, max(1 - _both_solved_share(paired, claim, delta), rate))


def _most_lost(paired: Paired, claim: Claim, level: float) -> float:
    """Returns the upper bound of the rate: Clopper and Pearson's, or of several stages what they together reject."""
    stages = [(each.outcomes.lost, each.outcomes.right, time) for each, time in claim.stages(paired)]
    lost, right, times = zip(*stages, strict=True)
    return 1 - largest(lambda kept: float(combined(bdtr(lost, right, 1 - kept), times)), level)


def _both_solved_share(paired: Paired, claim: Claim, delta: float) -> float:
    """Returns a lower bound of the share of the target's solved problems that both solve."""
    both = replace(paired, fuzzy=paired.target & paired.fuzzy)
    whole = claim.problems if claim.guarantee == "dataset" else None
    return largest(lambda share: betting_test.p_value(both, share, whole), delta)


def difference_of(paired: Paired, confidence: float, claim: Claim) -> tuple[float, float, float]:
    """Returns the difference in accuracy, fuzzy rule minus target, and the ends of its two-sided interval.

    The interval is the adjusted Wald interval of paired proportions, which adds one loss and one gain: Bonett and
    Price, Journal of Educational and Behavioral Statistics 37, 2012. The problem or group is the unit, and the added
    loss and gain are of problems, with all seeds.

    Args:
        paired: A sample of which each of the claim's stages has a size that did not depend on its outcomes.
    """
    stages = list[_Estimate]()
    for each, time in claim.stages(paired):
        centre, squares, n = change_of(each)
        stages.append(_Estimate(centre, squares**0.5 / n, time))
    difference = paired.accuracy - paired.target_accuracy
    low, high = _interval(stages, difference, confidence)
    return difference, max(low, -1.0), min(high, 1.0)


def change_of(paired: Paired) -> tuple[float, float, int]:
    """Returns the mean of fuzzy rule minus target, the sum of squares around it, and the number of problems, with one
    loss and one gain more than there are."""
    target, fuzzy = paired.units
    change, n = fuzzy - target, paired.problems + 2
    centre = float(change.sum()) / n
    residual = change - centre * paired.unit_sizes
    return centre, float(residual @ residual) + 2 * (1 + centre**2), n


def retention_interval(paired: Paired, confidence: float, claim: Claim | None = None) -> tuple[float, float] | None:
    """Returns the interval of accuracy / target's accuracy by the delta method; None: the target solved nothing.

    The problem or group is the unit, whatever the number of seeds. As in `difference_of`, one loss and one gain are
    added, so that the interval has a width where no outcome flipped.

    Args:
        claim: Whose stages the outcomes are of; None: all were decoded for the same.
    """
    if not paired.target.any():
        return None
    stages = [_retention(*stage) for stage in ([(paired, 1.0)] if claim is None else claim.stages(paired))]
    low, high = _interval(stages, paired.retention, confidence)
    return max(low, 0.0), high


def _retention(paired: Paired, time: float) -> _Estimate:
    target, fuzzy = paired.units
    if not target.any():
        return _Estimate(0.0, math.inf, time)
    ratio = float(fuzzy.sum() / target.sum())
    residual = fuzzy - ratio * target
    return _Estimate(ratio, (float(residual @ residual) + 1 + ratio**2) ** 0.5 / float(target.sum()), time)


class _Estimate(NamedTuple):
    """What a stage shows of a quantity, with its standard error and the time that it took."""

    centre: float
    error: float
    time: float


def _interval(stages: Sequence[_Estimate], estimate: float, confidence: float) -> tuple[float, float]:
    """Returns the values that stages do not reject together, and the estimate by all their problems."""
    weights = [each.time**0.5 / each.error for each in stages]
    centre = sum(weight * each.centre for weight, each in zip(weights, stages, strict=True)) / sum(weights)
    reach = float(ndtri((1 + confidence) / 2)) * sum(each.time for each in stages) ** 0.5 / sum(weights)
    return min(centre - reach, estimate), max(centre + reach, estimate)
