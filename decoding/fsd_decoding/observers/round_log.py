"""RoundLog: an observer that keeps a few numbers of every round, for as many rounds as there are.

Knows when rounds are reduced to numbers: many of a kind at once, since one by one would cost more than the rounds of
a small model can spare. Reads nothing back from the device until it is asked. Knows neither tables nor pictures.
"""

from __future__ import annotations

import math
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from fsd_decoding.observers.round_record import RoundRecord

# MERGED: """A few numbers of every round: what is held of a round, and what many rounds of a kind are reduced to.
#
# Knows the small tensors of rounds, (B, L) at most. Knows nothing of when they are reduced, or for whom.
# """


FACT = "policy."  # begins the names of what the policy itself tells


@dataclass(frozen=True)
class Held:
    """A round of B rows and L drafts without its logits."""

    round: int
    seconds: float
    active: Tensor  # (B,) bool, on the host
    drafted: Tensor  # (B,)
    accepted: Tensor  # (B,)
    divergences: Tensor  # (B, L)
    bounds: Tensor | None  # (B, 1) or (B, L) T; None: the rule has none
    by_score: Tensor | None  # (B, L) bool: what T decided
    facts: dict[str, Tensor]  # () each

    @classmethod
    def of(cls, record: RoundRecord, number: int, seconds: float) -> Held:
        """What the engine or the policy may write to is copied."""
        facts = record.adaptive.facts() if record.adaptive is not None else {}
        return cls(
            number,
            seconds,
            torch.tensor([request is not None for request in record.requests]),
            record.drafted,
            record.accepted,
            record.proposal.divergences,
            record.proposal.bounds.clone() if record.rule.fuzzy else None,
            record.verdict.by_score,
            {name: _number(value, record.accepted.device) for name, value in facts.items()},
        )

    @property
    def kind(self) -> Hashable:
        """Rounds of one kind can be stacked."""
        shapes = (None if t is None else t.shape for t in (self.divergences, self.bounds, self.by_score))
        return *shapes, self.divergences.dtype, self.accepted.device, *self.facts


def _number(value: float | Tensor, device: torch.device) -> Tensor:
    if isinstance(value, Tensor):
        return value.to(device, torch.float64, copy=True).reshape(())
    return torch.full((), value, dtype=torch.float64, device=device)  # without the host waiting for a copy


def reduced(held: Sequence[Held]) -> dict[str, Tensor]:
    """Of R rounds of one kind: (R,) float64 each, on their device; `RoundLog.columns` says what they are."""
    stacked = partial(_stacked, device=held[0].accepted.device)
    active, divergences = stacked([one.active for one in held]), stacked([one.divergences for one in held]).double()
    drafted = stacked([one.drafted for one in held]) * active  # (R, B)
    accepted = stacked([one.accepted for one in held]) * active
    span = torch.arange(divergences.shape[2], device=divergences.device)
    decided = span < torch.minimum(accepted + 1, drafted)[..., None]  # (R, B, L)
    thresholds = _stacked_or(math.nan, [one.bounds for one in held], divergences)
    substituted = (span < accepted[..., None]) & _stacked_or(False, [one.by_score for one in held], decided)
    rows = active.sum(1)
    numbers = {
        "round": stacked([torch.tensor(one.round) for one in held]),
        "seconds": stacked([torch.tensor(one.seconds, dtype=torch.float64) for one in held]),
        "rows": rows,
        "drafted": drafted.sum(1),
        "accepted": accepted.sum(1),
        "emitted": accepted.sum(1) + rows,
        "decided": decided.sum((1, 2)),
        "threshold_least": -_largest(-thresholds, decided),
        "threshold": _mean(thresholds, decided),
        "threshold_most": _largest(thresholds, decided),
        "divergence": _mean(divergences, decided),
        "substituted": substituted.sum((1, 2)),
        "divergence_substituted": _largest(divergences, substituted),
        **{FACT + name: stacked([one.facts[name] for one in held]) for name in held[0].facts},
    }
    return {name: number.double() for name, number in numbers.items()}


def _stacked(parts: Sequence[Tensor], device: torch.device) -> Tensor:
    return torch.stack(list(parts)).to(device, non_blocking=True)


def _stacked_or(fill: float, parts: Sequence[Tensor | None], shape: Tensor) -> Tensor:
    """Like `shape`; all `fill` where there are no parts, which all rounds of a kind have or have not."""
    there = [part for part in parts if part is not None]
    return torch.stack(there).expand_as(shape) if there else torch.full_like(shape, fill)


def _mean(values: Tensor, where: Tensor) -> Tensor:
    """Over all but the first dimension; NaN where there are none."""
    return values.masked_fill(~where, 0.0).sum((1, 2)) / where.sum((1, 2))


def _largest(values: Tensor, where: Tensor) -> Tensor:
    """Over all but the first dimension; NaN where there are none."""
    shown = values.masked_fill(~where, -math.inf).flatten(1)
    return pad(shown, (0, 1), value=-math.inf).amax(1).masked_fill(~where.flatten(1).any(1), math.nan)


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
