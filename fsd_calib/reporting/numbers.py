"""How numbers are written in reports. Knows no profile."""

from __future__ import annotations

import math

NONE = "–"


def percent(share: float | None) -> str:
    return NONE if share is None else f"{100 * share:.1f}%"


def bound(share: float | None) -> str:
    """Rounded down: a bound that is rounded up claims more than was shown."""
    return NONE if share is None else f"{math.floor(1000 * share + 1e-9) / 10:.1f}%"


def exact(share: float) -> str:
    return f"{100 * share:.6g}%"


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
