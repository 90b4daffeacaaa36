"""Significance levels of attempts, and rows of results compared with them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from fsd_calib.certification.attempt_ledger import attempt_level

CONFIDENCE = 0.95
NUMBERS = (1, 2, 4)  # attempts whose levels are reported


def own_level(number: int) -> float:
    """Returns the significance level of the attempt with this number, without any inherited from an earlier one."""
    return attempt_level(CONFIDENCE, number)


LEVELS = tuple(own_level(number) for number in NUMBERS)


def allowed(level: float, draws: int) -> float:
    """Returns the level plus three standard errors of a share of that many draws."""
    return level + 3 * math.sqrt(level * (1 - level) / draws)


def line(*figures: object) -> str:
    """Returns a row as text, which keeps a file of thousands of rows readable."""
    return " | ".join(f"{f:.4g}" if isinstance(f, float) else str(f) for f in figures)


class Share(NamedTuple):
    """How often a certificate is false."""

    what: str  # was simulated
    way: str  # the procedure
    false: float


def summarise(shares: Sequence[Share], columns: str, level: float, runs: int) -> dict[str, Any]:
    """Returns all rows, those above the level, and the largest share of each procedure."""
    most, ways = allowed(level, runs), dict.fromkeys(share.way for share in shares)
    rows = {line(share.what, share.way, share.false): share.false for share in shares}
    return {
        "runs": runs,
        "allowed": most,
        "columns": columns,
        "largest": {way: max(share.false for share in shares if share.way == way) for way in ways},
        "above": [row for row, false in rows.items() if false > most],
        "rows": list(rows),
    }
