"""A lower bound from a test: the largest number that the test still shows. Knows nothing of what is tested."""

from __future__ import annotations

from collections.abc import Callable

from fsd_decoding.errors import UsageError

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
