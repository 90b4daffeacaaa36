"""The level of each attempt, so that all attempts that ask one problem keep the promise together."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fsd_calib.certifying.ledger_file import Entry
from fsd_calib.certifying.problem_numbers import Numbers, known


def attempt_level(confidence: float, number: int) -> float:
    """The level of attempt `number`: over all attempts these sum to 1 - confidence (DESIGN section 10).

    What passes hands its level on to no other attempt, as it might by Tian and Ramdas's online fallback (2021): that
    holds for attempts fixed beforehand that claim no more than what was wanted, and not where the next wish is chosen
    by what the last one showed (docs/calibration.md has the figures).
    """
    return (1 - confidence) * 6 / (math.pi**2 * number**2)


def next_number(entries: Sequence[Entry], asked: Numbers) -> int:
    """Of another attempt on these problems, after all attempts that there are."""
    return 1 + sum(bool(known(asked, entry.problems).any()) for entry in entries)
