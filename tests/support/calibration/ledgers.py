"""Names of ledger families, problems of a given number, and attempts on them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from fsd_calib.certification.attempt_ledger import Attempt, AttemptLedger

OURS, OTHERS = "target", "another target"


class Numbered(NamedTuple):
    """A problem whose text is in its normal form: its key is its id."""

    id: int

    @property
    def key(self) -> int:
        return self.id


def problems_with(ids: Iterable[int]) -> list[Numbered]:
    return [Numbered(one) for one in ids]


def open_attempt(ledger: AttemptLedger, family: str, ids: Iterable[int], frozen: str) -> Attempt:
    return ledger.open(family, problems_with(ids), frozen)
