"""What a wish wants shown, and how likely a tuned configuration is to show it, if the tuning part tells the truth.

Knows a wish, the size of the certification part and the level of the attempt. Knows nothing of searching.
"""

from __future__ import annotations

from fsd_calib.calibration.goal import Goal
from fsd_calib.certification.claim import Claim
from fsd_calib.certification.outcomes import Paired
from fsd_calib.certification.power import power, seeds_worth
from fsd_calib.measuring.measurement import Measurement
from fsd_calib.search.max_speed import Chance
from fsd_calib.search.pass_model import PassModel

_HALF = 0.5  # where all is decoded, or nothing is tested, what counts is the mean: no room for chance is kept


def claim_of(goal: Goal, problems: int) -> Claim:
    """What is to be shown on so many certification problems. Where nothing is to be tested, what would be."""
    guarantee = "population" if goal.guarantee == "none" else goal.guarantee
    return Claim(goal.min_acc, goal.acc, guarantee, goal.test, problems)


def chance_of(goal: Goal, problems: int, delta: float) -> Chance:
    """Of passing on so many certification problems at the level `delta`."""
    wanted, level = goal.min_acc, _level(goal, delta)
    assert wanted is not None

    def chance(fuzzy: Measurement, alone: Measurement) -> float:
        seen = Paired(alone.correct, fuzzy.correct)
        shown = seen.against_perfect() if goal.acc == "absolute" else seen
        return power(
            problems=round(problems * seeds_worth(shown, wanted)), accuracy=shown.target_accuracy, churn=shown.churn,
            retention=shown.retention, wanted=wanted, delta=level,
        )  # fmt: skip

    return chance


def bar_of(goal: Goal, problems: int, delta: float, alone: Measurement) -> PassModel:
    """What `chance_of` says where a setting was measured, as far as a normal law says it where none was.

    Args:
        alone: the target on the tuning part.
    """
    assert goal.min_acc is not None
    return PassModel(
        goal.min_acc, alone.accuracy, alone.problems, problems, _level(goal, delta), goal.acc == "absolute"
    )


def _level(goal: Goal, delta: float) -> float:
    return delta if goal.guarantee == "population" else _HALF
