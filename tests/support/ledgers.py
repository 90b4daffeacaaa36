"""A family, problems of which only ids are known, and attempts on them."""

from __future__ import annotations

from collections.abc import Iterable

from fsd_calib.certification.attempt_ledger import Attempt, AttemptLedger
from fsd_calib.certification.ledger_file import ById

OURS, OTHERS = "target", "another target"


def these(ids: Iterable[int]) -> list[ById]:
    return [ById(one) for one in ids]


def opened(ledger: AttemptLedger, family: str, ids: Iterable[int], frozen: str) -> Attempt:
    return ledger.open(family, these(ids), frozen)
