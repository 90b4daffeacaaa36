"""The numerical floor: a note on it, and whether a goal is finer than it."""

from __future__ import annotations

from fsd_calib.certification.bounds import DELTA, Floor
from fsd_calib.config import Goal
from fsd_common.argument_checks import named
from fsd_common.errors import UsageError
from fsd_common.formatting import at_least, at_most, confidence
from fsd_common.progress.base import Progress
from fsd_decoding.profile.parts import NumericalChurn


def note(churn: NumericalChurn | None, progress: Progress) -> None:
    """Notes how often rounding alone flips an outcome.

    Args:
        churn: None: it cannot be told from noise.
    """
    if churn is None:
        progress.note(
            "how many outcomes rounding alone flips is not known: sampled lossless texts have noise of their own in "
            "this engine"
        )
        return
    progress.note(
        f"rounding alone (the lossless rule compared with the target) flipped {churn.outcomes_flipped} of "
        f"{churn.problems} outcomes, so it flips {_floor(churn).bound_in_words}; it changed {churn.texts_changed} texts"
    )


def judge(goal: Goal, accuracy: float, churn: NumericalChurn | None, progress: Progress) -> None:
    """Checks that the goal is not finer than the floor, and notes where it may be.

    Args:
        accuracy: of the target, on the problems that `churn` was counted on.
        churn: None: it cannot be told from noise, and the goal is not checked.

    Raises:
        UsageError: a certificate is requested, and the losses it allows are below even the least that the floor may be.
    """
    if churn is None:
        return
    floor, room = _floor(churn), _room(goal, accuracy)
    if room is None or floor.share <= room:
        return
    if floor.least <= room or goal.explore:
        progress.note(
            f"{_room_in_words(goal, room)}, and rounding alone seems to flip more: {at_most(floor.share)} here"
        )
        return
    raise UsageError(
        f"{_room_in_words(goal, room)}, and rounding alone flips more than that: {churn.outcomes_flipped} of "
        f"{churn.problems}, at least {at_least(floor.least)} ({confidence(DELTA)} confidence); use "
        f"{named('dtype')} float32 if the models run in another one, or a lower {named('min_acc')}, or "
        f"{named('explore')}, which claims nothing"
    )


def _floor(churn: NumericalChurn) -> Floor:
    return Floor.of(churn.outcomes_flipped, churn.problems)


def _room(goal: Goal, accuracy: float) -> float | None:
    """How far a retention lets outcomes differ from the target's, as a share of problems; None: no retention is set.

    An absolute accuracy is compared with no other decoding: flips in both directions cancel in it.
    """
    return None if goal.min_acc is None or goal.acc == "absolute" else abs(1 - goal.min_acc) * accuracy


def _room_in_words(goal: Goal, room: float) -> str:
    assert goal.min_acc is not None
    if goal.min_acc > 1:
        return f"{named('min_acc')} {goal.min_acc:g} requires a gain of {at_most(room)} of the outcomes"
    return f"{named('min_acc')} {goal.min_acc:g} leaves room for {at_most(room)} of the outcomes to be lost"
