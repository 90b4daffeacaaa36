"""The claim that a goal makes, and the probability that a setting passes its test, estimated on tuning data."""

from __future__ import annotations

from fsd_calib.certification.claim import Claim
from fsd_calib.certification.outcomes import Paired
from fsd_calib.certification.power import power, seeds_worth
from fsd_calib.config import Goal
from fsd_calib.measuring.measurement import Measurement
from fsd_calib.search.max_speed import Chance
from fsd_calib.search.surrogate import PassModel

_HALF = 0.5  # the level where every problem is decoded or nothing is tested: the mean decides, without a margin


def claim_of(goal: Goal, problems: int) -> Claim:
    """Returns the claim to show on `problems` certification problems; of an exploration, the one that would be."""
    return Claim(goal.min_acc, goal.acc, goal.guarantee, goal.test, problems)


def chance_of(goal: Goal, problems: int, delta: float) -> Chance:
    """Returns the probability of passing on `problems` certification problems at level `delta`, as a function."""
    wanted, level = goal.min_acc, _level(goal, delta)
    assert wanted is not None

    def chance(fuzzy: Measurement, alone: Measurement) -> float:
        paired = Paired(alone.correct, fuzzy.correct)
        tested = paired.against_perfect() if goal.acc == "absolute" else paired
        return power(
            problems=round(problems * seeds_worth(tested, wanted)), accuracy=tested.target_accuracy,
            churn=tested.churn, retention=tested.retention, wanted=wanted, delta=level,
        )  # fmt: skip

    return chance


def pass_model_of(goal: Goal, problems: int, delta: float, alone: Measurement) -> PassModel:
    """Returns the bar that unmeasured settings must clear: `chance_of` in normal approximation.

    Args:
        alone: the target on the tuning part.
    """
    assert goal.min_acc is not None
    return PassModel(
        goal.min_acc, alone.accuracy, alone.problems, problems, _level(goal, delta), goal.acc == "absolute"
    )


def _level(goal: Goal, delta: float) -> float:
    return delta if goal.guarantee == "population" else _HALF
