"""`Look`: an observer that watches some rounds of decoding, and ends it before the texts do."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from statistics import median

import torch

from fsd_calib.engines.own import synchronize
from fsd_calib.measuring.evaluator import EnoughError
from fsd_decoding.observers.round_record import RoundRecord


@dataclass
class Look:
    """An observer of rounds that ends them when it has seen enough.

    Attributes:
        until: when that is, by the clock.
        most: rounds after the first, with all rows, that suffice.
        first: seconds of the first round with its prefill.
        seconds: of the rounds after it that had as many rows.
        drafting: the seconds of these in which the draft ran.
        tokens: emitted, in `row_rounds` rounds of one row.
    """

    device: torch.device
    until: float
    most: float = float("inf")
    rows: int = 0
    first: float = 0.0
    seconds: list[float] = field(default_factory=list)
    drafting: list[float] = field(default_factory=list)
    tokens: int = 0
    row_rounds: int = 0
    last: float = field(default_factory=time.perf_counter)

    def __call__(self, record: RoundRecord) -> None:
        synchronize(self.device)
        now, rows = time.perf_counter(), int(record.active.sum())
        if not self.rows:
            self.rows, self.first = rows, now - self.last
        elif rows == self.rows:
            self.seconds.append(now - self.last)
            self.drafting.append(record.draft_seconds)
        self.tokens += int((record.accepted + 1)[record.active].sum())
        self.row_rounds += rows
        self.last = now
        if (self.seconds and now > self.until) or len(self.seconds) >= self.most:  # a first round is mostly prefill
            raise EnoughError

    @property
    def round(self) -> float:
        """Seconds of a round."""
        return median(self.seconds) if self.seconds else self.first

    @property
    def prefill(self) -> float:
        """Seconds of a row's prefill."""
        return max(self.first - self.round, 0.0) / self.rows
