"""The level of each attempt: a share of its own, and what earlier attempts that erred nowhere hand on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
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
    return Turn(1 + earlier, math.fsum(_bequests(entries, asked, confidence)))


def _bequests(entries: Sequence[Entry], asked: Numbers, confidence: float) -> Iterator[float]:
    """Levels that are handed on to an attempt that is opened now (online fallback, Tian and Ramdas 2021).

    An attempt's heir is the first one that is opened after it and asks none but its own problems. Who that is does not
    depend on outcomes, and it has the level if that is free by then (see `Attempt.decide`): so the attempts that ask
    any one problem never spend more than 1 - confidence together.
    """
    for entry in entries:
        if entry.level is None or not entry.hands_on or entry.confidence != confidence:
            continue
        later = [other.problems for other in entries if other.place > entry.place]
        if _inside(asked, entry) and not any(_inside(other, entry) for other in later):
            yield entry.level


def _inside(asked: Numbers, entry: Entry) -> bool:
    """Whether these are all among the problems of that attempt."""
    return bool(known(asked, entry.problems).all())
