"""Confidence bounds: of any test by inversion, and of a share from a count."""

from __future__ import annotations

from collections.abc import Callable

from scipy.stats import binomtest

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
    return float(binomtest(count, of, alternative="greater").proportion_ci(1 - delta, "exact").low)


def at_most(count: int, of: int, delta: float) -> float:
    """Returns an exact upper bound, at 1 - `delta`, of the share behind a count (Clopper and Pearson).

    For a count of 0 it is 1 - delta^(1/of): at 95 % a little less than 3/of, the rule of three.
    """
    return float(binomtest(count, of, alternative="less").proportion_ci(1 - delta, "exact").high)
