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
from fsd_decoding.sampling import Sampling


@dataclass(frozen=True)
class Draft:
    """Tokens drafted in a round. A row's first `counts` are proposed; what follows them is rubbish."""

    tokens: Tensor  # (B, L)
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
policy."""


def draft_round(
    drafter: Drafter, batch: Batch, sampling: Sampling, draft_length: int, longest: int, policy: StopPolicy | None
) -> Draft:
    """Drafts up to `draft_length` = L tokens a row and writes them behind its text.

    `longest` is the largest of `batch.lengths`, on the host. A row drafts no more than its own
    `batch.draft_lengths`; the phase ends early where a policy has stopped every row.
    """
    counts = torch.zeros_like(batch.lengths)
    drafting = batch.draft_lengths > 0
    logits: list[Tensor] = []
    for step in range(draft_length):
        if policy is not None:
            drafting = drafting & policy(DraftState(batch, logits, drafting))
            if not drafting.any():
                break
        here = drafter.logits(batch.tokens, batch.lengths, step, longest + step)
        positions = batch.lengths[:, None] + step
        drawn = sampling.draw(sampling.warp(here, batch.tokens, positions), batch.keys, positions)
        batch.tokens.scatter_(1, positions, drawn)
        logits.append(here)
        counts += drafting
        drafting = drafting & (batch.draft_lengths > step + 1)
    span = torch.arange(len(logits), device=counts.device)
    return Draft(batch.tokens.gather(1, batch.lengths[:, None] + span), logits, counts)
