"""Verification phase of a round, on the device: run the target, judge the drafts, write and pack the emitted tokens.

No step depends on a tensor's value, so each can be one graph. The host reads the result once, in `Decided.of`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fsd_decoding.acceptance.proposal import Criterion, Proposal, Verdict, emitted_tokens
from fsd_decoding.acceptance.rules import Rule
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
    accepted: Tensor  # (B,) number of them before the first rejection


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
    """Applies the rule; of the proposal's L tokens, each row's first `drafted` (B,) count."""
    verdict = rule.judge(proposal)
    span = torch.arange(proposal.drafted.shape[1], device=drafted.device)
    accepted = verdict.accepted & (span < drafted[:, None])
    return JudgedRound(proposal, verdict, drafted, accepted.cumprod(1).sum(1))


def settle(judged: JudgedRound, batch: Batch) -> Tensor:
    """Writes the tokens of every position into the batch, and packs the round for `Decided.of`.

    Returns:
        (B, columns) float64.
    """
    proposal, verdict = judged.proposal, judged.verdict
    span = _span(batch, proposal.positions.shape[1])
    emitted = emitted_tokens(proposal, verdict, judged.drafted, judged.accepted)
    batch.tokens.scatter_(1, proposal.positions, emitted)  # positions beyond the new length are overwritten later
    target, draft = proposal.finite
    padding = span[:-1] >= judged.drafted[:, None]
    finite_logits = target[:, 0] & (target[:, 1:] & draft | padding).all(1)
    valid_bounds = proposal.has_valid_bounds(~padding)
    parts = [emitted, torch.stack([judged.drafted, judged.accepted, finite_logits, valid_bounds], 1)]
    if verdict.score is not None and verdict.by_score is not None:
        score = verdict.score.double()
        spared = torch.where(verdict.by_score & verdict.accepted, score, -torch.inf)
        parts += [spared.cummax(1).values, torch.where(verdict.by_score & ~verdict.accepted, score, torch.inf)]
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
    finite_logits: list[bool]  # no logits of the row are NaN or +inf
    valid_bounds: list[bool]  # no T of the row is NaN, and no scale negative
    spared: list[list[float]]  # by position, the largest score up to it that accepted a token; -inf where none did
    refused: list[list[float]]  # by position, the score that rejected the token; inf where none did

    @classmethod
    def of(cls, packed: Tensor, drafts: int) -> Decided:
        """Unpacks the result of `settle`, by one copy to the host for the whole round."""
        rows = packed.tolist()
        n = drafts + 1
        return cls(
            emitted=[[int(t) for t in row[:n]] for row in rows],
            drafted=[int(row[n]) for row in rows],
            accepted=[int(row[n + 1]) for row in rows],
            finite_logits=[bool(row[n + 2]) for row in rows],
            valid_bounds=[bool(row[n + 3]) for row in rows],
            spared=[row[n + 4 : n + 4 + drafts] for row in rows],
            refused=[row[n + 4 + drafts :] for row in rows],
        )

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
