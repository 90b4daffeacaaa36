"""The outcome that follows from speeds, in a calibration and where a profile is timed again."""

from __future__ import annotations

from fsd_calib.measuring.speed import Interval
from fsd_decoding.profile.content import Outcome


def timed_outcome(
    outcome: Outcome, over_sd: Interval, speed: float, wanted: float | None, lossless_meets: bool
) -> Outcome:
    """Returns the outcome, which a choice loses where its timed speed does not justify it.

    That is a speed below the requested one, or one that may be no higher than that of `sd` where `sd` meets the goal.

    Args:
        outcome: by the test alone.
        over_sd: the chosen configuration's speed divided by that of `sd`.
        speed: of the chosen configuration.
        wanted: the requested speed; None: none.
        lossless_meets: whether `sd` meets the goal.
    """
    if outcome not in ("certified", "untested"):
        return outcome
    if over_sd.low <= 1 and lossless_meets:
        return "lossless-suffices"
    return outcome if wanted is None or speed >= wanted else "too-slow"
