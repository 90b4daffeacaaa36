"""RoundLog: an observer that keeps a few numbers of every round, for as many rounds as there are.

Knows when rounds are reduced to numbers: many of a kind at once, since one by one would cost more than the rounds of
a small model can spare. Reads nothing back from the device until it is asked. Knows neither tables nor pictures.
"""

from __future__ import annotations

import math
import time
from collections.abc import Hashable
from typing import NamedTuple, Self

import torch
from torch import Tensor

from fsd_decoding.observing import RoundRecord
from fsd_decoding.round_numbers import Held, reduced

_HELD = 256  # rounds of a kind that are reduced at once


class Way(NamedTuple):
    """How rounds were decoded."""

    rule: str
    fuzzy: bool  # the rule has a T
    divergence: str
    on: str  # "raw" or "processed" logits
    policy: str | None  # class of the one that moved T

    @classmethod
    def of(cls, record: RoundRecord) -> Self:
        criterion, policy = record.proposal.criterion, record.adaptive
        name = None if policy is None else type(policy).__name__
        return cls(record.rule.name, record.rule.fuzzy, criterion.divergence, criterion.on, name)


class RoundLog:
    """Give it to `generate` as `observer`, then ask for its `columns`; to several calls, and they go on as one.

    A round costs the host some list entries and the device a copy of its T and of the policy's facts; every 256 rounds
    of a kind are reduced in about 50 operations on (256, B, L) numbers. Under a rule that does not ask for D itself
    (`sd`, `coupled`, `typical`, `ensemble`) D is computed for this. The host never waits for the device. Kept are
    some 100 bytes a round, and the (B, L) numbers of rounds not yet reduced, on the device.
    """

    def __init__(self) -> None:
        self._began = -math.inf
        self._rounds = 0
        self._ways: dict[Way, None] = {}
        self._held: dict[Hashable, list[Held]] = {}
        self._kept: list[dict[str, Tensor]] = []

    def __call__(self, record: RoundRecord) -> None:
        now = time.perf_counter()
        if not self._rounds:
            self._began = now - record.draft_seconds - record.verify_seconds
        self._ways[Way.of(record)] = None
        held = Held.of(record, self._rounds, now - self._began)
        self._rounds += 1
        alike = self._held.setdefault(held.kind, [])
        alike.append(held)
        if len(alike) == _HELD:
            self._reduce(held.kind)

    @property
    def ways(self) -> list[Way]:
        """How the rounds were decoded: each way once, in the order they came."""
        return list(self._ways)

    def columns(self) -> dict[str, Tensor]:
        """One entry a round, in their order: (rounds,) float64 each, on the CPU. Waits for the device.

        seconds: since the first round began, by the host's clock. rows: those that have a prompt; others do not count.
        drafted, accepted: tokens, of all rows. emitted: the accepted ones and one more a row; the last round of a text
        may bring more than it keeps, what lies behind its EOS, stop string or `max_new_tokens`. decided: drafted
        tokens up to the first rejected one. threshold_least, threshold, threshold_most: smallest, mean and largest T
        that these were held against; NaN where there are none, or the rule has no T. divergence: their mean D,
        infinite where one is. substituted: tokens accepted for D <= T alone. divergence_substituted: the largest D of
        these, NaN where there are none. policy.…: what the policy told of itself, NaN where it told nothing.

        Under `typical` T bounds a score of its own, and what that alone accepted is substituted.
        """
        for kind in list(self._held):
            self._reduce(kind)
        names = dict.fromkeys(name for block in self._kept for name in block)
        whole = {name: torch.cat([_column(name, block) for block in self._kept]) for name in names}
        if not whole:
            return {}
        order = whole.pop("round").argsort()
        return {name: column[order] for name, column in whole.items()}

    def _reduce(self, kind: Hashable) -> None:
        self._kept.append(reduced(self._held.pop(kind)))


def _column(name: str, block: dict[str, Tensor]) -> Tensor:
    missing = torch.full_like(block["round"], math.nan)
    return block.get(name, missing).cpu()
