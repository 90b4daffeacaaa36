"""Confidence bounds: of any test by inversion, of a share from a count, and of flips by rounding alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from fsd_common import formatting
from fsd_common.errors import UsageError

_HALVINGS = 60  # of an interval as long as the bound: down to the resolution of a float


def largest(p_value: Callable[[float], float], delta: float) -> float:
    """Returns the largest r with `p_value(r) <= delta`, for a p-value that rises with r > 0; 0 where there is none.

    Raises:
        UsageError: `delta` is not in (0, 1).
    """
    require_level(delta)
    low, high = 0.0, 1.0
    while p_value(high) <= delta:
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if p_value(middle) <= delta else (low, middle)
    return low


def require_level(delta: float) -> None:
    """Checks a significance level.

    Raises:
        UsageError: `delta` is not in (0, 1).
    """
    if not 0 < delta < 1:
        raise UsageError(f"delta is {delta}; a significance level must lie between 0 and 1 (0.05 is usual)")


def at_least(count: int, of: int, delta: float) -> float:
    """Returns an exact lower bound, at 1 - `delta`, of the share behind a count; 0 where the count is 0.

    Exact at any number: Clopper and Pearson, Biometrika 26, 1934.
    """
    from scipy.stats import binomtest  # the import takes a second, and reports need none

    return float(binomtest(count, of, alternative="greater").proportion_ci(1 - delta, "exact").low)


def at_most(count: int, of: int, delta: float) -> float:
    """Returns an exact upper bound, at 1 - `delta`, of the share behind a count (Clopper and Pearson).

    For a count of 0 it is 1 - delta^(1/of): at 95 % a little less than 3/of, the rule of three.
    """
    from scipy.stats import binomtest

    return float(binomtest(count, of, alternative="less").proportion_ci(1 - delta, "exact").high)


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
        least, most = (bound(flipped, problems, DELTA) for bound in (at_least, at_most))
        return cls(flipped / problems, least, most)

    @property
    def bound_in_words(self) -> str:
        """The upper bound, as sentences go on: "so it flips ..."."""
        return f"at most {formatting.at_most(self.most)} of outcomes ({formatting.confidence(DELTA)} confidence)"
