"""A lower bound from a test: the largest number that the test still shows. Knows nothing of what is tested."""

from __future__ import annotations

from collections.abc import Callable

from scipy.stats import binomtest

from fsd_decoding.errors import UsageError

# MERGED: """One-sided bounds of a share from a count, exact at any number (Clopper and Pearson, Biometrika 26, 1934)."""


_HALVINGS = 60  # of an interval as long as the bound: more than a float can tell apart


def largest(p_value: Callable[[float], float], delta: float) -> float:
    """The largest r with `p_value(r) <= delta`, for a p-value that rises with r > 0; 0 where there is none.

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
    """UsageError: no level of a test."""
    if not 0 < delta < 1:
        raise UsageError(f"delta is {delta}; the chance of a false certificate must lie between 0 and 1, as 0.05 does")


def at_least(count: int, of: int, delta: float) -> float:
    """Below the true share with a chance of at least 1 - `delta`; 0 where the count is 0."""
    return float(binomtest(count, of, alternative="greater").proportion_ci(1 - delta, "exact").low)


def at_most(count: int, of: int, delta: float) -> float:
    """Above the true share with a chance of at least 1 - `delta`.

    A count of 0 gives 1 - delta^(1/of): at 95 % a little less than 3/of, the rule of three.
    """
    return float(binomtest(count, of, alternative="less").proportion_ci(1 - delta, "exact").high)
