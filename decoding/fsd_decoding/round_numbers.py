"""A few numbers of every round: what is held of a round, and what many rounds of a kind are reduced to.

Knows the small tensors of rounds, (B, L) at most. Knows nothing of when they are reduced, or for whom.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import pad

from fsd_decoding.observing import RoundRecord

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
