"""Observers that keep numbers: `Recorder` scores of every decided token, `RoundLog` a few numbers of every round.

Both work on many rounds at once, since for one round of a small model the overhead would dominate.
"""

from __future__ import annotations

import math
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from fsd_common.errors import UsageError
from fsd_decoding.divergence import unchecked_divergences
from fsd_decoding.observers.round_record import RoundRecord
from fsd_decoding.scores import is_divergence

_PENDING = 1 << 22  # logits (positions x V) that are kept before they are reduced: 32 MB for both models in fp32


class Recorder:
    """Records scores: pass it to `generate` as `observer`, then read `columns`.

    Args:
        names: the scores to record, on raw logits where they are defined on either.
    """

    def __init__(self, names: Sequence[str]) -> None:
        if isinstance(names, str):
            raise UsageError(f"names is {names!r}; it must be a list of names of scores")
        self._names = list(names)
        self._divergences = [name for name in names if is_divergence(name)]  # computed for many rounds at once
        self._others = [name for name in names if not is_divergence(name)]
        # Logits of p and q, (B, L, V) each, and which tokens were decided, (B, L).
        self._pending: list[tuple[Tensor, Tensor, Tensor]] = []
        self._kept: dict[str, list[Tensor]] = {}

    def __call__(self, record: RoundRecord) -> None:
        proposal = record.proposal
        if not proposal.drafted.numel():
            return
        shape = proposal.drafted.shape
        prompts = torch.tensor([r.index if r else -1 for r in record.requests])
        drafts = torch.arange(shape[1], device=record.accepted.device)
        decided = record.decided
        self._pending.append((proposal.target_logits[:, :-1], proposal.draft_logits, decided))
        self._keep(
            decided=decided,
            prompt=prompts[:, None].expand(shape),
            position=proposal.positions[:, :-1],
            draft=drafts.expand(shape),
            token=proposal.drafted,
            accepted=drafts < record.accepted[:, None],
            **{name: score[decided] for name, score in record.scores(self._others).items()},
        )
        if sum(p.numel() for p, _, _ in self._pending) >= _PENDING:
            self._reduce_pending()

    def columns(self) -> dict[str, Tensor]:
        """Returns columns on the CPU with one entry per decided token, in the order of the decisions.

        prompt: its index. position: absolute. draft: the token's position in the round's draft, from 0. token: the
        drafted one. accepted: whether it was. And each of the recorded scores, fp32 or fp64.
        """
        self._reduce_pending()
        whole = {name: torch.cat([part.cpu() for part in parts]) for name, parts in self._kept.items()}
        decided = whole.pop("decided", torch.empty(0, dtype=torch.bool))
        return {name: column if name in self._names else column[decided] for name, column in whole.items()}

    def _keep(self, **columns: Tensor) -> None:
        for name, column in columns.items():
            self._kept.setdefault(name, []).append(column.flatten())

    def _reduce_pending(self) -> None:
        if self._pending:
            p, q = (torch.cat([pending[i][pending[2]] for pending in self._pending]) for i in (0, 1))
            self._pending.clear()
            self._keep(**unchecked_divergences(self._divergences, p, q))


FACT_PREFIX = "policy."
"""Begins the names of columns that hold the `facts` of a threshold policy."""


@dataclass(frozen=True)
class RoundSnapshot:
    """A round of B rows and L drafted tokens without its logits, as kept until it is reduced."""

    round: int
    seconds: float
    active: Tensor  # (B,) bool, on the host
    drafted: Tensor  # (B,)
    accepted: Tensor  # (B,)
    scores: Tensor  # (B, L)
    bounds: Tensor | None  # (B, 1) or (B, L) T; None: the rule has no T
    by_score: Tensor | None  # (B, L) bool: decisions that T made
    facts: dict[str, Tensor]  # () each

    @classmethod
    def of(cls, record: RoundRecord, number: int, seconds: float) -> RoundSnapshot:
        """Copies the tensors that the engine or the policy may overwrite; the others are shared."""
        facts = record.adaptive.facts() if record.adaptive is not None else {}
        return cls(
            number,
            seconds,
            torch.tensor([request is not None for request in record.requests]),
            record.drafted,
            record.accepted,
            record.proposal.scores,
            record.proposal.bounds.clone() if record.rule.fuzzy else None,
            record.verdict.by_score,
            {name: _to_scalar(value, record.accepted.device) for name, value in facts.items()},
        )

    @property
    def kind(self) -> Hashable:
        """Equal for rounds whose tensors can be stacked."""
        shapes = (None if t is None else t.shape for t in (self.scores, self.bounds, self.by_score))
        return *shapes, self.scores.dtype, self.accepted.device, *self.facts


def _to_scalar(value: float | Tensor, device: torch.device) -> Tensor:
    if isinstance(value, Tensor):
        return value.to(device, torch.float64, copy=True).reshape(())
    return torch.full((), value, dtype=torch.float64, device=device)  # unlike tensor(), without waiting for a copy


def reduce_rounds(rounds: Sequence[RoundSnapshot]) -> dict[str, Tensor]:
    """Returns the columns of R rounds of one kind, (R,) float64 each, on their device. `RoundLog.columns` describes
    them."""

    def stack(parts: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(parts)).to(rounds[0].accepted.device, non_blocking=True)

    active, scores = stack([r.active for r in rounds]), stack([r.scores for r in rounds]).double()
    drafted = stack([r.drafted for r in rounds]) * active  # (R, B)
    accepted = stack([r.accepted for r in rounds]) * active
    span = torch.arange(scores.shape[2], device=scores.device)
    decided = span < torch.minimum(accepted + 1, drafted)[..., None]  # (R, B, L)
    thresholds = _stack_or(math.nan, [r.bounds for r in rounds], scores)
    substituted = (span < accepted[..., None]) & _stack_or(False, [r.by_score for r in rounds], decided)
    rows = active.sum(1)
    numbers = {
        "round": stack([torch.tensor(r.round) for r in rounds]),
        "seconds": stack([torch.tensor(r.seconds, dtype=torch.float64) for r in rounds]),
        "rows": rows,
        "drafted": drafted.sum(1),
        "accepted": accepted.sum(1),
        "emitted": accepted.sum(1) + rows,
        "decided": decided.sum((1, 2)),
        "threshold_least": -_largest(-thresholds, decided),
        "threshold": _mean(thresholds, decided),
        "threshold_most": _largest(thresholds, decided),
        "score": _mean(scores, decided),
        "substituted": substituted.sum((1, 2)),
        "score_substituted": _largest(scores, substituted),
        **{FACT_PREFIX + name: stack([r.facts[name] for r in rounds]) for name in rounds[0].facts},
    }
    return {name: number.double() for name, number in numbers.items()}


def _stack_or(fill: float, parts: Sequence[Tensor | None], shape: Tensor) -> Tensor:
    """Returns the stacked parts, expanded to `shape`, or `fill` everywhere if the rounds have None for a part."""
    present = [part for part in parts if part is not None]
    return torch.stack(present).expand_as(shape) if present else torch.full_like(shape, fill)


def _mean(values: Tensor, where: Tensor) -> Tensor:
    """Returns the mean over all but the first dimension; NaN where there are no values."""
    return values.masked_fill(~where, 0.0).sum((1, 2)) / where.sum((1, 2))


def _largest(values: Tensor, where: Tensor) -> Tensor:
    """Returns the maximum over all but the first dimension; NaN where there are no values."""
    shown = values.masked_fill(~where, -math.inf).flatten(1)
    return pad(shown, (0, 1), value=-math.inf).amax(1).masked_fill(~where.flatten(1).any(1), math.nan)


_BLOCK = 256  # rounds of a kind that are reduced at once


class DecodingSetup(NamedTuple):
    """The settings that rounds were decoded with, as far as they decide what T and D mean."""

    rule: str
    fuzzy: bool  # the rule has a T
    score: str
    on: str  # "raw" or "processed" logits
    policy: str | None  # class name of the threshold policy

    @classmethod
    def of(cls, record: RoundRecord) -> Self:
        criterion, policy = record.proposal.criterion, record.adaptive
        name = None if policy is None else type(policy).__name__
        return cls(record.rule.name, record.rule.fuzzy, criterion.score, criterion.on, name)


class RoundLog:
    """Records rounds: pass it to `generate` as `observer`, then read `columns`. Several calls continue one log.

    Cost of a round: some list entries on the host, and on the device a copy of its T and of the policy's facts. Every
    256 rounds of a kind are reduced in about 50 operations on (256, B, L) numbers. Under a rule that does not use D
    itself (`sd`, `coupled`) D is computed for the log. The host never waits for the device.
    Memory: some 100 bytes a round, and the (B, L) numbers of rounds not reduced yet, on the device.
    """

    def __init__(self) -> None:
        self._began = -math.inf
        self._rounds = 0
        self._setups: dict[DecodingSetup, None] = {}
        self._pending: dict[Hashable, list[RoundSnapshot]] = {}
        self._blocks: list[dict[str, Tensor]] = []

    def __call__(self, record: RoundRecord) -> None:
        now = time.perf_counter()
        if not self._rounds:
            self._began = now - record.draft_seconds - record.verify_seconds
        self._setups[DecodingSetup.of(record)] = None
        snapshot = RoundSnapshot.of(record, self._rounds, now - self._began)
        self._rounds += 1
        same_kind = self._pending.setdefault(snapshot.kind, [])
        same_kind.append(snapshot)
        if len(same_kind) == _BLOCK:
            self._reduce(snapshot.kind)

    @property
    def setups(self) -> list[DecodingSetup]:
        """The settings that rounds were decoded with, each once, in the order of their first round."""
        return list(self._setups)

    def columns(self) -> dict[str, Tensor]:
        """Returns columns with one entry per round, in order: (rounds,) float64 each, on the CPU. Waits for the device.

        seconds: since the first round began, by the host's clock. rows: those that have a prompt; others do not count.
        drafted, accepted: tokens of all rows. emitted: the accepted tokens and one more per row. The last round of a
        text may emit more than the text keeps: what follows its EOS, stop string or `max_new_tokens`. decided: drafted
        tokens up to the first rejected one. threshold_least, threshold, threshold_most: smallest, mean and largest T
        that these were compared with; NaN if there are none, or if the rule has no T. score: their mean D,
        infinite if one is. substituted: tokens accepted only because D <= T. score_substituted: the largest D of
        these, NaN if there are none. policy.…: the policy's facts, NaN in rounds without them.
        """
        for kind in list(self._pending):
            self._reduce(kind)
        names = dict.fromkeys(name for block in self._blocks for name in block)
        if not names:
            return {}
        missing = [torch.full_like(block["round"], math.nan) for block in self._blocks]
        columns = {
            name: torch.cat([block.get(name, nan).cpu() for block, nan in zip(self._blocks, missing, strict=True)])
            for name in names
        }
        order = columns.pop("round").argsort()
        return {name: column[order] for name, column in columns.items()}

    def _reduce(self, kind: Hashable) -> None:
        self._blocks.append(reduce_rounds(self._pending.pop(kind)))
