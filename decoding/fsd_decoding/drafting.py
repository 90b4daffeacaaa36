"""The draft phase of a round: ask for q, draw a token, decide whether to go on.

Knows drafters, sampling and stop policies. Knows nothing of verification or acceptance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fsd_decoding.batch import Batch
from fsd_decoding.drafter import Drafter
from fsd_decoding.errors import UsageError
from fsd_decoding.sampling import Sampling


@dataclass(frozen=True)
class Draft:
    """What a round drafted: tokens that stand behind the rows' texts.

    A row's first `counts` are proposed; what follows them is rubbish.
    """

    logits: list[Tensor]  # L times (B, 1, V), raw
    counts: Tensor  # (B,)


@dataclass(frozen=True)
class DraftState:
    """What a stop policy may know: everything but the target's opinion."""

    batch: Batch
    logits: list[Tensor]  # one (B, 1, V) a token drafted so far in this round, raw
    drafting: Tensor  # (B,) bool: rows that have not stopped


StopPolicy = Callable[[DraftState], Tensor]
"""Asked before each draft step: the rows (B,) bool that shall draft one more token. A row that stopped stays
stopped for the round. No token once drawn goes unverified, so `sd` keeps the target's distribution under every
policy. A result's interval of T supposes a policy that does not look at `batch.thresholds`."""


def draft_steps(drafter: Drafter, batch: Batch, sampling: Sampling, draft_length: int, reach: int) -> list[Tensor]:
    """Drafts `draft_length` = L tokens a row, writes them behind its text and returns L logits (B, 1, V).

    `reach` is at least the largest of `batch.lengths` and L. No step depends on a tensor's value, so the whole
    phase may be one graph.
    """
    return [_step(drafter, batch, sampling, step, reach) for step in range(draft_length)]


def draft_until(
    policy: StopPolicy, drafter: Drafter, batch: Batch, sampling: Sampling, draft_length: int, reach: int
) -> Draft:
    """The same under a policy, which is asked before each step; ends early where it has stopped every row."""
    counts = torch.zeros_like(batch.lengths)
    drafting = torch.ones_like(batch.lengths, dtype=torch.bool)
    logits: list[Tensor] = []
    for step in range(draft_length):
        drafting = drafting & (batch.draft_lengths > step)
        drafting = drafting & _answer(policy, DraftState(batch, logits, drafting))
        if not drafting.any():
            if step == 0:  # the drafter reads on even where it drafts nothing, or it would miss these tokens for good
                drafter.logits(batch.tokens, batch.lengths, step, reach)
            break
        counts = counts + drafting
        logits.append(_step(drafter, batch, sampling, step, reach))
    return Draft(logits, counts)


def _answer(policy: StopPolicy, state: DraftState) -> Tensor:
    answer: object = policy(state)
    if isinstance(answer, Tensor) and answer.dtype == torch.bool and answer.shape == state.drafting.shape:
        return answer
    shown = " ".join(repr(answer).split())  # a tensor's would take lines
    wanted = f"a bool tensor of shape ({len(state.drafting)},), one truth value a row"
    raise UsageError(f"the policy answered {shown:.80}; it must give {wanted}")


def _step(drafter: Drafter, batch: Batch, sampling: Sampling, step: int, reach: int) -> Tensor:
    logits = drafter.logits(batch.tokens, batch.lengths, step, reach)
    positions = batch.lengths[:, None] + step
    drawn = sampling.draw(sampling.warp(logits, batch.tokens, positions), batch.keys, positions)
    batch.tokens.scatter_(1, positions, drawn)
    return logits
