"""How numbers are written in reports."""

from __future__ import annotations

import math
from collections.abc import Callable

NONE = "–"


def percent(share: float | None) -> str:
    return NONE if share is None else f"{100 * share:.1f}%"


def bound(share: float | None) -> str:
    """Rounded down: a bound that is rounded up claims more than was shown."""
    return NONE if share is None else f"{math.floor(1000 * share + 1e-9) / 10:.1f}%"


def exact(share: float) -> str:
    """Of a share that a user gave."""
    return f"{100 * share:.6g}%"


def at_most(share: float) -> str:
    """Two significant digits, rounded up: an upper bound that is rounded down claims more than was shown."""
    return exact(min(_rounded(share, math.ceil), 1.0))


def at_least(share: float) -> str:
    """Two significant digits, rounded down."""
    return exact(_rounded(share, math.floor))


def level(delta: float) -> str:
    """Of a test."""
    return f"{delta:.3g}"


def confidence(delta: float) -> str:
    """Of what was tested at a level: two significant digits of that, rounded up, so that no more is claimed than there
    is."""
    return exact(1 - _rounded(delta, math.ceil))


def points(change: float) -> str:
    """Of a share, in percentage points."""
    return f"{round(100 * change, 1) + 0.0:+.1f}"


def points_between(low_high: tuple[float, float]) -> str:
    """Rounded outwards."""
    low, high = low_high
    return f"{points(math.floor(1000 * low) / 1000)} to {points(math.ceil(1000 * high) / 1000)}"


def _rounded(share: float, towards: Callable[[float], int]) -> float:
    """To two significant digits; what differs from them by a float's last bits is left as it is."""
    if share <= 0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(share)) - 1)
    near = round(share / unit)
    return unit * (near if abs(share / unit - near) < 1e-6 else towards(share / unit))


def threshold(value: float | None) -> str:
    return NONE if value is None else f"{value:.4g}"


def pace(value: float | None, digits: int = 1) -> str:
    return NONE if value is None else f"{value:.{digits}f}"


def interval(low_high: tuple[float, float], digits: int = 1) -> str:
    low, high = low_high
    return f"{low:.{digits}f}–{high:.{digits}f}"


def tokens(count: int) -> str:
    return f"{count:,} tokens" if count < 10_000 else f"{count / 1e6:.2f} M tokens"


def milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.4g} ms"
