"""What a policy's arguments must be. Knows numbers, and no policy."""

from __future__ import annotations

import math
from numbers import Real

from fsd_decoding.errors import UsageError


def number(thing: str, value: object, rule: str = "it must be a number (negative is lossless)") -> float:
    """UsageError: it is none, or NaN; True is none."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise UsageError(f"{thing} is {value!r:.60}; {rule}")
    if math.isnan(value):
        raise UsageError(f"{thing} is NaN; {rule}")
    return float(value)


def amount(thing: str, value: object, *, zero: bool = True) -> float:
    """UsageError: it is no finite number of 0 or more; or above 0, where that is not allowed."""
    rule = f"it must be a finite number {'of 0 or more' if zero else 'above 0'}"
    found = number(thing, value, rule)
    if not 0 <= found < math.inf or not (found or zero):
        raise UsageError(f"{thing} is {value}; {rule}")
    return found
