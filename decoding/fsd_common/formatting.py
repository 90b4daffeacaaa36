"""Number formats of reports, plans and messages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Context

NONE = "–"
_TINY = 1e-30  # what is not further from 0 is shown as 0
ROUNDS = {"off": "called directly", "capture": "captured as graphs", "on": "compiled"}
"""How rounds are called, by `profile.costs.Rounds`."""


def percent(share: float | None) -> str:
    """Returns a measured share, rounded to a tenth of a percent."""
    return NONE if share is None else f"{100 * share:.1f}%"


def bound(share: float | None, precision: float = 1e-12) -> str:
    """Returns a lower bound, rounded down: a bound that is rounded up claims more than was shown.

    Args:
        precision: to which the bound was computed; what lies that close below a tenth of a percent is that tenth.
    """
    return NONE if share is None else f"{math.floor(1000 * (share + precision)) / 10:.1f}%"


def requirement(share: float, precision: float) -> str:
    """Returns a share that is to be reached, rounded up, so that what reaches it suffices. `precision`: see `bound`."""
    return f"{math.ceil(1000 * (share - precision)) / 10:.1f}%"


def exact(share: float) -> str:
    """Returns a share that a user gave, as it was given."""
    return f"{100 * share:.6g}%"


def at_most(share: float) -> str:
    """Returns two significant digits, rounded up: an upper bound that is rounded down claims more than was shown."""
    return exact(min(_rounded(share, ROUND_CEILING), 1.0))


def at_least(share: float) -> str:
    """Returns two significant digits, rounded down."""
    return exact(_rounded(share, ROUND_FLOOR))


def level(delta: float) -> str:
    """Returns the significance level of a test."""
    return f"{delta:.3g}"


def confidence(delta: float) -> str:
    """Returns the confidence 1 - delta of a test at level delta.

    Delta keeps two significant digits, rounded up, so that no more confidence is claimed than there is.
    """
    return exact(1 - _rounded(delta, ROUND_CEILING))


def _rounded(share: float, towards: str) -> float:
    """To two significant digits. A difference from them beyond the eighth digit is a float's last bits, and ignored."""
    return float(Context(prec=2, rounding=towards).create_decimal(f"{max(share, 0.0):.8g}"))


def points(change: float) -> str:
    """Returns a difference of shares, in percentage points."""
    return f"{round(100 * change, 1) + 0.0:+.1f}"


def points_between(low_high: tuple[float, float]) -> str:
    """Returns an interval of such a difference, rounded outwards."""
    low, high = low_high
    return f"{points(math.floor(1000 * low) / 1000)} to {points(math.ceil(1000 * high) / 1000)}"


def threshold(value: float | None) -> str:
    return NONE if value is None else f"{value if abs(value) > _TINY else 0:.4g}"


def pace(value: float | None, digits: int = 1) -> str:
    """Returns tokens per second or per round."""
    return NONE if value is None else f"{value:.{digits}f}"


def pace_between(value: float, low_high: tuple[float, float] | None) -> str:
    """Returns tokens per second with their interval, where there is one."""
    return pace(value) + ("" if low_high is None else f" ({interval(low_high)})")


def interval(low_high: tuple[float, float], digits: int = 1) -> str:
    low, high = low_high
    return f"{low:.{digits}f}–{high:.{digits}f}"


def tokens(count: int) -> str:
    return f"{count:,} tokens" if count < 10_000 else f"{count / 1e6:.2f} M tokens"


def parameters(count: int) -> str:
    """Returns a model's size, with two digits: 1.5B, 630M."""
    unit, size = ("B", 1e9) if count >= 1e9 else ("M", 1e6)
    return f"{float(f'{count / size:.2g}'):g}{unit}"


def answer_seconds(value: float | None) -> str:
    """Returns how long an answer takes, in seconds, to three digits."""
    return NONE if value is None else f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.4g} ms"


def gigabytes(size: int) -> str:
    """Returns a size in bytes as decimal megabytes or gigabytes."""
    return f"{size / 1e6:.0f} MB" if size < 0.9995e9 else f"{size / 1e9:.1f} GB"


def megabytes(size: int) -> int:
    """Returns a size in bytes as whole decimal megabytes, at least one."""
    return max(round(size / 1e6), 1)


def device_hours(seconds: float) -> str:
    """Returns an estimated time in hours, to two digits and at least 0.01."""
    hours = seconds / 3600
    return "0.01" if hours < 0.01 else f"{hours:.2g}" if hours < 10 else f"{hours:,.0f}"


def duration(seconds: float) -> str:
    """Returns an estimated time in seconds, minutes or hours, no more precise than estimates are."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 99.5 * 60 else f"{seconds / 3600:.1f} h"


def clock(seconds: float) -> str:
    """Returns a time as clocks show it: minutes and seconds, and hours where there are any."""
    minutes, left = divmod(round(seconds), 60)
    return f"{minutes}:{left:02}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02}:{left:02}"


def attempts(numbers: Sequence[int]) -> str:
    """Returns the numbers of one attempt or several, in words."""
    return f"attempt{'s' * (len(numbers) > 1)} {' and '.join(map(str, numbers))}"


def in_trees(tree: object | None) -> str:
    """Returns the shape of trees as what follows a draft length; None: nothing, as of chains."""
    return "" if tree is None else f", trees of {tree}"
