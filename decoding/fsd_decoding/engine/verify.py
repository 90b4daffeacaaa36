"""Verification phase of a round, on the device: run the target, judge the drafts, write and pack the emitted tokens.

No step depends on a tensor's value, so each can be one graph. The host reads the result once, in `Decided.of`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fsd_decoding.acceptance.proposal import Criterion, Proposal, Verdict
from fsd_decoding.acceptance.rules import Rule
from fsd_decoding.acceptance.walk import Path, walk
from fsd_decoding.batch import Batch
from fsd_decoding.models.runner import ModelRunner
from fsd_decoding.policies.stopping import Verified
from fsd_decoding.sampling import Sampling


@dataclass(frozen=True)
class JudgedRound:
    """A round after the rule's decisions, still on the device."""

    proposal: Proposal
    verdict: Verdict
    drafted: Tensor  # (B,) number of proposed tokens
    path: Path

    @property
    def accepted(self) -> Tensor:
        """Number of drafted tokens that became text: (B,)."""
        return self.path.accepted


def verify(target: ModelRunner, batch: Batch, drafts: int, reach: int, unread: int = 1) -> Tensor:
    """Runs the target on the drafted tokens.

    Args:
        target: the target model with its cache.
        batch: rows with the drafted tokens behind their texts.
        drafts: L, the number of drafted tokens.
        reach: an upper bound of the rows' lengths + L.
        unread: number of tokens at the end of every row that the target has not read yet. A shorter row feeds its first
            token repeatedly instead.

    Returns:
        Raw logits (B, L + 1, V) after each row's last token and after each drafted one.
    """
    at = (batch.lengths[:, None] - unread + _span(batch, unread + drafts)).clamp_min(0)
    return target.logits(batch.tokens.gather(1, at), at, reach, keep=drafts + 1)


def propose(
    batch: Batch, criterion: Criterion, sampling: Sampling, target_logits: Tensor, draft_logits: list[Tensor]
) -> Proposal:
    """Collects a round for the rule.

    Args:
        batch: rows with the drafted tokens behind their texts.
        criterion, sampling: settings of the proposal.
        target_logits: (B, L + 1, V) raw.
        draft_logits: L tensors (B, 1, V), raw.
    """
    positions = _last_and_drafted(batch, len(draft_logits)) + 1
    return Proposal(
        target_logits,
        torch.cat([target_logits[:, :0], *draft_logits], 1),
        batch.tokens.gather(1, positions[:, :-1]),
        positions,
        batch.tokens,
        batch.keys,
        batch.thresholds,
        criterion,
        sampling,
        race=None if batch.race is None else batch.race[:, : positions.shape[1]],
    )


def judge(rule: Rule, proposal: Proposal, drafted: Tensor) -> JudgedRound:
    """Applies the rule to the proposal, of which `drafted` (B,) tokens of each row count."""
    verdict = rule.judge(proposal)
    return JudgedRound(proposal, verdict, drafted, walk(proposal, verdict, drafted))


def settle(judged: JudgedRound, batch: Batch) -> Tensor:
    """Writes the tokens of every position into the batch, and packs the round for `Decided.of`.

    Returns:
        (B, columns) float64.
    """
    path = judged.path
    batch.tokens.scatter_(1, path.positions, path.emitted)  # positions beyond the new length are overwritten later
    finite_logits, valid_bounds = judged.proposal.health(judged.drafted)
    facts = [judged.drafted, path.accepted, path.whole, finite_logits, valid_bounds]
    parts = [path.emitted, torch.stack(facts, 1)]
    if path.spared is not None and path.refused is not None:
        parts += [path.spared, path.refused]
    return torch.cat([part.double() for part in parts], 1)  # token ids are exact in fp64


def judge_and_settle(
    batch: Batch,
    rule: Rule,
    criterion: Criterion,
    sampling: Sampling,
    target_logits: Tensor,
    draft_logits: list[Tensor],
    drafted: Tensor,
) -> Tensor:
    """`propose`, `judge` and `settle` as one step, for rounds without an observer or a threshold policy."""
    return settle(judge(rule, propose(batch, criterion, sampling, target_logits, draft_logits), drafted), batch)


@dataclass(frozen=True)
class Decided:
    """One round on the host: the candidate tokens of every row, and the decisions on them."""

    emitted: list[list[int]]  # L + 1 each, of which the first `accepted + 1` are emitted
    drafted: list[int]
    accepted: list[int]
    whole: list[bool]  # nothing was rejected
    finite_logits: list[bool]  # no logits of the row are NaN or +inf
    valid_bounds: list[bool]  # no T of the row is NaN, and no scale negative
    spared: list[list[float]]  # by position, the largest score up to it that accepted a token; -inf where none did
    refused: list[list[float]]  # by position, the score that rejected a token; inf where none did

    @classmethod
    def of(cls, packed: Tensor, drafts: int) -> Decided:
        """Unpacks the result of `settle`, by one copy to the host for the whole round.

        Args:
            packed: (B, columns).
            drafts: L, the most drafted tokens that can become text.
        """
        rows = packed.tolist()
        n = drafts + 1
        scores = n + 5
        return cls(
            emitted=[[int(t) for t in row[:n]] for row in rows],
            drafted=[int(row[n]) for row in rows],
            accepted=[int(row[n + 1]) for row in rows],
            whole=[bool(row[n + 2]) for row in rows],
            finite_logits=[bool(row[n + 3]) for row in rows],
            valid_bounds=[bool(row[n + 4]) for row in rows],
            spared=[row[scores : scores + drafts] for row in rows],
            refused=[row[scores + drafts :] for row in rows],
        )

    def interval(self, row: int, kept: int) -> tuple[float, float]:
        """The largest score that accepted one of a row's first `kept` tokens, and the smallest that rejected one."""
        decisions = min(kept, self.accepted[row] + (not self.whole[row]))  # a bonus token is no decision
        spared, refused = self.spared[row][:decisions], self.refused[row][:decisions]
        return spared[-1] if spared else -math.inf, min(refused, default=math.inf)

    def verified(self, row: int) -> Verified:
        """The outcome of a row's round, as passed to a stop policy."""
        drafted, accepted = self.drafted[row], self.accepted[row]
        spared = self.spared[row][accepted - 1] if accepted and self.spared[row] else -math.inf
        refused = self.refused[row][accepted] if accepted < drafted and self.refused[row] else math.inf
        return Verified(
            drafted, accepted, None if spared == -math.inf else spared, None if refused == math.inf else refused
        )


def _last_and_drafted(batch: Batch, drafts: int) -> Tensor:
    """Positions of every row's last token and of the drafted tokens after it: (B, L + 1)."""
    return batch.lengths[:, None] - 1 + _span(batch, drafts + 1)


def _span(batch: Batch, length: int) -> Tensor:
    return torch.arange(length, device=batch.lengths.device)
