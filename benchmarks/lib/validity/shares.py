"""How often a certificate is false, by what was simulated: rows, and which of them are above what is promised."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from fsd_decoding.profile.certificate import attempt_level

CONFIDENCE = 0.95


def own_level(number: int) -> float:
    """Returns the significance level of the attempt with this number, without any inherited from an earlier one."""
    return attempt_level(CONFIDENCE, number)


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


def summarise(
    shares: Sequence[Share], columns: str, level: float, runs: int, unsound: Collection[str] = ()
) -> dict[str, Any]:
    """Returns all rows, those above the level, and the largest share of each procedure.

    Args:
        unsound: procedures that are there for comparison, and promise nothing.
    """
    most, ways = allowed(level, runs), dict.fromkeys(share.way for share in shares)
    return {
        "runs": runs,
        "allowed": most,
        "columns": columns,
        "largest": {way: max(share.false for share in shares if share.way == way) for way in ways},
        "above": [line(*share) for share in shares if share.false > most and share.way not in unsound],
        "rows": [line(*share) for share in shares],
    }
