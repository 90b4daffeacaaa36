"""Names of ledger families, problems of a given number, and attempts on them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pytest

from fsd_calib.certification.attempt_ledger import Attempt, AttemptLedger, Run
from fsd_common.errors import UsageError

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


def write_ledger(path: Path) -> None:
    """Five attempts, of which the first passed, with their runs, and problems that were tuned on."""
    with AttemptLedger(path) as ledger:
        ledger.tuned_on(OURS, problems_with(range(1000, 1500)))
        for n in range(5):
            run = Run(f"run {n}", f"facts {n}")
            attempt = ledger.open(OURS, problems_with(range(100 * n, 100 * n + 500)), "frozen", run)
            attempt.decide("failed" if n else "passed")


def content_of(path: Path) -> object:
    """Returns all that a ledger holds, or the message with which it is refused; nothing else may happen."""
    try:
        with AttemptLedger(path) as ledger:
            attempts = [open_attempt(ledger, OURS, range(100 * n, 100 * n + 500), "frozen") for n in range(5)]
            with pytest.raises(UsageError, match="500 of 500 certification problems were tuned on"):
                open_attempt(ledger, OURS, range(1000, 1500), "a")
            facts = [ledger.facts_of(OURS, f"run {n}") for n in range(5)]
            number = ledger.next_number(OURS, problems_with(range(100)))
            return [(attempt.number, attempt.verdict) for attempt in attempts], facts, number
    except UsageError as error:
        return str(error)
