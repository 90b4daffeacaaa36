"""Numerical floor: how often rounding alone flips an outcome."""

from __future__ import annotations

from typing import NamedTuple

from fsd_common.formatting import at_most, confidence

DELTA = 0.05  # significance level of each bound, individually


class Floor(NamedTuple):
    """The share of outcomes that flip between the target and the lossless rule.

    Attributes:
        share: as counted.
        least, most: lower and upper confidence bound, each at 95 % by itself.
    """

    share: float
    least: float
    most: float

    @classmethod
    def of(cls, flipped: int, problems: int) -> Floor:
        """Returns the floor with `flipped` of `problems` outcomes flipped."""
        from fsd_calib.certification import bounds

        least, most = (bound(flipped, problems, DELTA) for bound in (bounds.at_least, bounds.at_most))
        return cls(flipped / problems, least, most)

    @property
    def bound_in_words(self) -> str:
        """The upper bound, as sentences go on: "so it flips ..."."""
        return f"at most {at_most(self.most)} of outcomes ({confidence(DELTA)} confidence)"
