"""One-sided bounds of a share from a count, exact at any number (Clopper and Pearson, Biometrika 26, 1934)."""

from __future__ import annotations

from scipy.stats import binomtest


def at_least(count: int, of: int, delta: float) -> float:
    """Below the true share with a chance of at least 1 - `delta`; 0 where the count is 0."""
    return float(binomtest(count, of, alternative="greater").proportion_ci(1 - delta, "exact").low)


def at_most(count: int, of: int, delta: float) -> float:
    """Above the true share with a chance of at least 1 - `delta`.

    A count of 0 gives 1 - delta^(1/of): at 95 % a little less than 3/of, the rule of three.
    """
    return float(binomtest(count, of, alternative="less").proportion_ci(1 - delta, "exact").high)
