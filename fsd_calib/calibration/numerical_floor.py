"""How often rounding alone flips an outcome, and whether a wish is finer than that."""

from __future__ import annotations

from typing import NamedTuple

from fsd_calib.calibration.goal import Goal
from fsd_calib.formatting import at_least, at_most, confidence
from fsd_calib.progress import Progress
from fsd_decoding.errors import UsageError
from fsd_decoding.profile.parts import NumericalChurn

_DELTA = 0.05  # of each bound by itself


class Floor(NamedTuple):
    """The share of outcomes that flip between the target and the lossless rule. least, most: what the count leaves
    open, each with a chance of 1 in 20 to be wrong."""

    share: float
    least: float
    most: float

    @classmethod
    def of(cls, flipped: int, problems: int) -> Floor:
        from fsd_calib.certification import bounds

        least, most = (bound(flipped, problems, _DELTA) for bound in (bounds.at_least, bounds.at_most))
        return cls(flipped / problems, least, most)

    @property
    def below(self) -> str:
        """In words."""
        return f"at most {at_most(self.most)} ({confidence(_DELTA)} confidence)"


def judge(goal: Goal, accuracy: float, churn: NumericalChurn, progress: Progress) -> None:
    """Tells the floor, then holds the wish against it.

    Args:
        accuracy: of the target, on the problems that `churn` was counted on.

    Raises:
        UsageError: the wish is to be shown, and is finer than even the least that the floor may be.
    """
    floor, room = Floor.of(churn.outcomes_flipped, churn.problems), _room(goal, accuracy)
    progress.note(
        f"rounding alone (the lossless rule against the target) flipped {churn.outcomes_flipped} of {churn.problems} "
        f"outcomes, so it flips {floor.below}; it changed {churn.texts_changed} texts"
    )
    if room is None or floor.share <= room:
        return
    if floor.least <= room or goal.guarantee == "none":
        progress.note(f"{_leaves(goal, room)}, and rounding alone seems to flip more: {at_most(floor.share)} were seen")
        return
    raise UsageError(
        f"{_leaves(goal, room)}, and rounding alone flips more than that: {churn.outcomes_flipped} of "
        f"{churn.problems}, at least {at_least(floor.least)} ({confidence(_DELTA)} confidence); use --dtype float32 if "
        "it is another, or a lower --min-acc, or --guarantee none, which claims nothing"
    )


def _room(goal: Goal, accuracy: float) -> float | None:
    """How far a retention lets outcomes go from the target's, as a share of problems; None: it says nothing of that.

    An accuracy by itself is compared with no other decoding: flips either way cancel in it.
    """
    return None if goal.min_acc is None or goal.acc == "absolute" else abs(1 - goal.min_acc) * accuracy


def _leaves(goal: Goal, room: float) -> str:
    assert goal.min_acc is not None
    if goal.min_acc > 1:
        return f"--min-acc {goal.min_acc:g} asks for a gain of {at_most(room)} of the outcomes"
    return f"--min-acc {goal.min_acc:g} leaves room for {at_most(room)} of the outcomes to be lost"
