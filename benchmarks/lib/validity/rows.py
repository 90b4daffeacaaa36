"""What a share may be where nothing is wrong, and how rows of figures are written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from fsd_calib.certification.attempt_ledger import attempt_level

CONFIDENCE = 0.95
NUMBERS = (1, 2, 4)  # of attempts, whose levels are looked at


def own_level(number: int) -> float:
    return attempt_level(CONFIDENCE, number)


LEVELS = tuple(own_level(number) for number in NUMBERS)


def allowed(level: float, draws: int) -> float:
    """The level and three standard errors."""
    return level + 3 * math.sqrt(level * (1 - level) / draws)


def line(*figures: object) -> str:
    """A row as text, so that a file of thousands can be read."""
    return " | ".join(f"{f:.4g}" if isinstance(f, float) else str(f) for f in figures)


class Share(NamedTuple):
    """How often something certified is not so."""

    what: str
    way: str  # it was done
    false: float


def listed(shares: Sequence[Share], columns: str, level: float, runs: int) -> dict[str, Any]:
    """All of them, those above the level, and the largest of each way."""
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
