"""Speculative sampling: acceptance by chance, and samples of what is left of p after a rejection."""

from __future__ import annotations

import torch
from torch import Tensor

from fsd_decoding import noise
from fsd_decoding.acceptance.proposal import Proposal, Verdict


def accepted_by_chance(p_x: Tensor, q_x: Tensor, keys: Tensor, positions: Tensor, rank: int = 0) -> Tensor:
    """Whether u <= p(x)/q(x), where u is the acceptance noise of `keys` at `positions`.

    Args:
        p_x, q_x: (B, L) probabilities of the drafted tokens.
        keys: (B, 2) noise keys.
        positions: (B, L) absolute positions.
        rank: which of several tokens at one position it is, each of which has a u of its own.

    Returns:
        (B, L) bool.
    """
    return noise.uniform(keys, positions, noise.Stream.ACCEPT, p_x.dtype, rank) * q_x <= p_x


def residual(p: Tensor, q: Tensor, proposal: Proposal) -> Tensor:
    """A keyed sample of (p - q)+ at every drafted position, or y where p = q: (B, L)."""
    return _sample((p - q).clamp_min(0.0), proposal)


def judge_siblings(proposal: Proposal, children: Tensor, p: Tensor, q: Tensor) -> Verdict:
    """Tests the children of every node one after the other, as in SpecInfer (arXiv 2305.09781, multi-step speculative
    sampling), for children drawn without replacement, as in recursive rejection sampling (arXiv 2402.14160).

    After a rejection, what is left of p is tested against what is left of q: (p - q)+, normalised, against q without
    the rejected token, normalised. So the emitted token has the law p, if the tokens drawn do not decide how many of
    them are proposed. With one child it is speculative sampling.

    Args:
        proposal: a round of trees.
        children: (B, N, k), -1: none; see `Tree.children`.
        p, q: (B, N, V) probabilities at nodes 0 … N - 1.

    Returns:
        The verdict on each node's first child; in its place comes an accepted sibling, or a sample of what is left.
    """
    accepted = torch.full_like(children[..., 0], -1)
    for rank in range(children.shape[2]):
        token = children[..., rank]
        x, proposed = token.clamp_min(0).unsqueeze(-1), token >= 0
        if rank:
            p, q = _normalised(p), _normalised(q)
        p_x, q_x = p.gather(-1, x).squeeze(-1), q.gather(-1, x).squeeze(-1)
        lucky = accepted_by_chance(p_x, q_x, proposal.keys, proposal.positions[:, :-1], rank)
        accepted = torch.where(lucky & proposed & (accepted < 0), token, accepted)
        p = torch.where(proposed.unsqueeze(-1), (p - q).clamp_min(0.0), p)
        q = q.scatter(-1, x, 0.0)
    first = (accepted == proposal.drafted) & (accepted >= 0)
    return Verdict(first, torch.where(accepted >= 0, accepted, _sample(p, proposal)))


def _normalised(weights: Tensor) -> Tensor:
    """The distribution (…, V) that weights are proportional to; zeros where all are zero."""
    return weights / weights.sum(-1, keepdim=True).clamp_min(torch.finfo(weights.dtype).tiny)


def _sample(rest: Tensor, proposal: Proposal) -> Tensor:
    """A keyed sample in proportion to `rest` (B, L, V) at every drafted position, or y where it is 0: (B, L)."""
    race = noise.gumbel(proposal.keys, proposal.positions[:, :-1], noise.Stream.RESIDUAL, rest.shape[-1], rest.dtype)
    sampled = (rest.log() + race).argmax(-1)
    return torch.where(rest.sum(-1) > 0, sampled, proposal.target_choice[:, :-1])
