"""The level of each attempt: a share of its own, and what earlier attempts that erred nowhere hand on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from fsd_calib.certifying.ledger_file import Entry
from fsd_calib.certifying.problem_numbers import Numbers, known


def attempt_level(confidence: float, number: int) -> float:
    """The own level of attempt `number`: over all attempts these sum to 1 - confidence (DESIGN section 10)."""
    return (1 - confidence) * 6 / (math.pi**2 * number**2)


class Turn(NamedTuple):
    """What an attempt may spend: by its number a level of its own, and what is handed on to it."""

    number: int
    inherited: float = 0.0

    def level(self, confidence: float) -> float:
        """To test at."""
        return attempt_level(confidence, self.number) + self.inherited


def next_turn(entries: Sequence[Entry], asked: Numbers, confidence: float) -> Turn:
    """Of another attempt on these problems, after all attempts that there are."""
    earlier = sum(bool(known(asked, entry.problems).any()) for entry in entries)
    levels = [entry.level for entry in bequests(entries, asked, confidence) if entry.level is not None]
    return Turn(1 + earlier, math.fsum(levels))


def bequests(entries: Sequence[Entry], asked: Numbers, confidence: float) -> list[Entry]:
    """Attempts that hand on their level to one that is opened now (online fallback, Tian and Ramdas 2021).

    Each hands it on once, to the first attempt that is opened after its decision and asks none but its own problems:
    so the attempts that ask any one problem never spend more than 1 - confidence together. Which attempts may, see
    `Attempt.decide`.
    """
    return [
        entry
        for entry in entries
        if entry.hands_on
        and entry.heir is None
        and entry.confidence == confidence
        and known(asked, entry.problems).all()
    ]
