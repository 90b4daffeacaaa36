"""Rounds of random distributions, for checks of scores and rules without models."""

from __future__ import annotations

import torch
from torch import Tensor

from fsd_decoding import noise
from fsd_decoding.proposal import Criterion, Proposal
from fsd_decoding.sampling import Sampling

SAMPLINGS = (Sampling(), Sampling(1.0), Sampling(0.7, top_k=4), Sampling(1.3, top_p=0.8))
"""Ways to draw that rules and scores are tried with."""
VOCABULARY = 9


def random_round(
    sampling: Sampling, threshold: float, rows: int = 200, drafts: int = 4, name: str = "js", seed: int = 0
) -> Proposal:
    """Returns a round with random, related distributions over 9 tokens, whose drafts are drawn with the keyed noise."""
    generator = torch.Generator().manual_seed(seed)
    target = 2 * torch.randn(rows, drafts + 1, VOCABULARY, generator=generator, dtype=torch.float64)
    draft = target[:, :-1] + torch.randn(rows, drafts, VOCABULARY, generator=generator, dtype=torch.float64)
    keys = noise.problem_keys(seed, list(range(rows)))
    positions = torch.arange(drafts + 1).expand(rows, -1) + 10
    return draw_round(
        target, draft, positions, keys, torch.full((rows,), threshold, dtype=torch.float64), Criterion(name), sampling
    )


def draw_round(
    target: Tensor,
    draft: Tensor,
    positions: Tensor,
    keys: Tensor,
    thresholds: Tensor,
    criterion: Criterion,
    sampling: Sampling,
) -> Proposal:
    """Returns the round of these distributions, whose drafts are drawn with the keyed noise; see `Proposal`."""
    tokens = torch.zeros(len(target), 20, dtype=torch.int64)
    drafted = sampling.draw(sampling.warp(draft, tokens, positions[:, :-1]), keys, positions[:, :-1])
    return Proposal(target, draft, drafted, positions, tokens, keys, thresholds, criterion, sampling)
