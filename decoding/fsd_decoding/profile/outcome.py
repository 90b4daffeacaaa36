"""Outcomes of a calibration: the test alone certifies accuracy, then the clock alone says what is known of speed."""

from __future__ import annotations

from typing import Final, Literal

Outcome = Literal[
    "certified-faster", "certified-speed-unknown", "certified-slower", "not-certified", "too-slow", "untested", "front",
    "lossless",
]  # fmt: skip
CERTIFIED: Final = ("certified-faster", "certified-speed-unknown", "certified-slower")
"""Outcomes in which the test passed, whatever the clock showed."""
FOLLOWED: Final = ("certified-faster", "certified-speed-unknown", "untested")
"""Outcomes in which decoders always run the chosen setting."""
BY_SPEED: Final = ("certified-slower", "too-slow")
"""Outcomes in which it depends on how fast the setting is, see `follows`."""
MET: Final = (*CERTIFIED, "untested", "lossless", "front")
"""Outcomes in which the calibration reached what was requested."""


def timed_outcome(
    tested: Outcome, over_sd: tuple[float, float], chosen: tuple[float, float], wanted: float | None = None
) -> Outcome:
    """Returns the outcome after timing: of a setting that passed its test, by the intervals [low, high] of its speed.

    Args:
        tested: the outcome before: of what passed its test `certified-speed-unknown`. Any other one stands.
        over_sd: of its speed divided by that of `sd`.
        chosen: of its speed.
        wanted: the speed that was requested; None: the highest was, so it is compared with `sd`.
    """
    if tested != "certified-speed-unknown":
        return tested
    if wanted is not None and chosen[1] < wanted:
        return "too-slow"
    if over_sd[1] < 1:
        return "certified-slower"
    shown = over_sd[0] > 1 if wanted is None else chosen[0] >= wanted
    return "certified-faster" if shown else "certified-speed-unknown"


def follows(outcome: Outcome, over_sd: tuple[float, float], *, certified: bool, lossless_meets: bool) -> bool:
    """Returns whether decoders run the chosen setting: an explored one, or one that passed its test, unless `sd` is
    shown to be faster and does what was requested.

    Args:
        outcome: after timing.
        over_sd: the interval [low, high] of its speed divided by that of `sd`; up to infinity where nothing was timed.
        certified: whether the setting passed its test.
        lossless_meets: whether `sd` does what was requested, as far as a faster one can.
    """
    return outcome == "untested" or (certified and (over_sd[1] >= 1 or not lossless_meets))
