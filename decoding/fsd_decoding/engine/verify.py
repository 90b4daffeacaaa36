"""The second half of a round, on the device: verify, judge, write what is emitted, pack it for the host.

Knows one round's tensors. Knows neither how tokens were drafted nor what a row is on the host. No step depends
on a tensor's value, so each may be one graph.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from fsd_decoding.acceptance.proposal import Criterion, Proposal, Verdict
from fsd_decoding.acceptance.rules import Rule
from fsd_decoding.batch import Batch
from fsd_decoding.models.runner import ModelRunner
from fsd_decoding.policies.stopping import Verified
from fsd_decoding.sampling import Sampling


@dataclass(frozen=True)
class JudgedRound:
    """What became of a round's drafts."""

    proposal: Proposal
    verdict: Verdict
    drafted: Tensor  # (B,) tokens proposed
    accepted: Tensor  # (B,) of them, up to the first rejection


def verify(target: ModelRunner, batch: Batch, drafts: int, reach: int, unread: int = 1) -> Tensor:
    """Raw logits of the target after the last token and after each of L drafted ones: (B, L + 1, V).

    Feeds the last `unread` tokens of every row too. A shorter row feeds its first one again in their stead.
    """
    at = (batch.lengths[:, None] - unread + _span(batch, unread + drafts)).clamp_min(0)
    return target.logits(batch.tokens.gather(1, at), at, reach, keep=drafts + 1)


def propose(
    batch: Batch, criterion: Criterion, sampling: Sampling, target_logits: Tensor, draft_logits: list[Tensor]
) -> Proposal:
    """`target_logits` (B, L + 1, V), `draft_logits` L times (B, 1, V)."""
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
    )


def judge(rule: Rule, proposal: Proposal, drafted: Tensor) -> JudgedRound:
    """`drafted` (B,): of the proposal's L tokens, those that count."""
    verdict = rule.judge(proposal)
    span = torch.arange(proposal.drafted.shape[1], device=drafted.device)
    agreed = verdict.accepted & (span < drafted[:, None])
    return JudgedRound(proposal, verdict, drafted, agreed.cumprod(1).sum(1))


def settle(judged: JudgedRound, batch: Batch) -> Tensor:
    """Writes what every position emits if the round gets that far, and packs what `Decided.of` unpacks."""
    proposal, verdict = judged.proposal, judged.verdict
    span = _span(batch, proposal.positions.shape[1])
    bonus = torch.where(span < judged.drafted[:, None], pad(verdict.fallback, (0, 1)), proposal.target_choice)
    emitted = torch.where(span < judged.accepted[:, None], pad(proposal.drafted, (0, 1)), bonus)  # (B, L + 1)
    batch.tokens.scatter_(1, proposal.positions, emitted)  # what lies beyond the new length is written again later
    target, draft = proposal.finite
    rubbish = span[:-1] >= judged.drafted[:, None]
    sound = target[:, 0] & (target[:, 1:] & draft | rubbish).all(1)
    bounded = proposal.bounded(~rubbish)
    parts = [emitted, torch.stack([judged.drafted, judged.accepted, sound, bounded], 1)]
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
    """`propose`, `judge` and `settle` as one step, for a round that nobody observes or has a say in."""
    return settle(judge(rule, propose(batch, criterion, sampling, target_logits, draft_logits), drafted), batch)


@dataclass(frozen=True)
class Decided:
    """One round on the host: per row its candidate tokens and what was decided of them."""

    emitted: list[list[int]]  # L + 1 each; the first `accepted + 1` count
    drafted: list[int]
    accepted: list[int]
    sound: list[bool]  # no logits of the row were NaN or +inf
    bounded: list[bool]  # nor was any T
    spared: list[list[float]]  # largest score so far that alone accepted, by position
    refused: list[list[float]]  # score where it rejected, else inf

    @classmethod
    def of(cls, packed: Tensor, drafts: int) -> Decided:
        """One copy to the host for the whole round."""
        rows = packed.tolist()
        n = drafts + 1
        return cls(
            emitted=[[int(t) for t in row[:n]] for row in rows],
            drafted=[int(row[n]) for row in rows],
            accepted=[int(row[n + 1]) for row in rows],
            sound=[bool(row[n + 2]) for row in rows],
            bounded=[bool(row[n + 3]) for row in rows],
            spared=[row[n + 4 : n + 4 + drafts] for row in rows],
            refused=[row[n + 4 + drafts :] for row in rows],
        )

    def verified(self, row: int) -> Verified:
        """What a stop policy is told of a row's round."""
        drafted, accepted = self.drafted[row], self.accepted[row]
        spared = self.spared[row][accepted - 1] if accepted and self.spared[row] else -math.inf
        refused = self.refused[row][accepted] if accepted < drafted and self.refused[row] else math.inf
        return Verified(
            drafted, accepted, None if spared == -math.inf else spared, None if refused == math.inf else refused
        )


def _last_and_drafted(batch: Batch, drafts: int) -> Tensor:
    """Positions of every row's last token and the drafted ones behind it: (B, L + 1)."""
    return batch.lengths[:, None] - 1 + _span(batch, drafts + 1)


def _span(batch: Batch, length: int) -> Tensor:
    return torch.arange(length, device=batch.lengths.device)
