"""Names of ledger families, problems known only by their ids, and attempts on them."""

from __future__ import annotations

from collections.abc import Iterable

from fsd_calib.certification.attempt_ledger import Attempt, AttemptLedger
from fsd_calib.certification.ledger_file import ById

OURS, OTHERS = "target", "another target"


def problems_with(ids: Iterable[int]) -> list[ById]:
    return [ById(one) for one in ids]


def open_attempt(ledger: AttemptLedger, family: str, ids: Iterable[int], frozen: str) -> Attempt:
    return ledger.open(family, problems_with(ids), frozen)
