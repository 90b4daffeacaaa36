"""Divergences that were tried for FSD and not adopted: formulas over `DistributionPair`, for `divergences.py`.

Knows formulas alone, and of numerics no more than a comparison needs: logits are finite. Which ones won, and why
the others did not, is in docs/divergences.md.
"""

from __future__ import annotations

from torch import Tensor

from fsd_decoding.divergence import DistributionPair

_ODD, _TIMES = 0.01, 3.0


def odds(of: DistributionPair) -> Tensor:
    """log p(argmax p) - log p(argmax q): small where the target itself is undecided."""
    favourite = of.log_q.argmax(-1, keepdim=True)
    return of.log_p.amax(-1) - of.log_p.gather(-1, favourite).squeeze(-1)


def unlikely(of: DistributionPair) -> Tensor:
    """Σ (q - 3p)+: what the draft puts where the target puts less than a third as much (hockey-stick)."""
    return (of.q - _TIMES * of.p).clamp_min(0.0).sum(-1)


def surprise(of: DistributionPair) -> Tensor:
    """(E_q[-log p] - H(p))+ = (KL(q‖p) + H(q) - H(p))+: how much more the draft's tokens surprise the target."""
    return ((of.p - of.q) * of.log_p).sum(-1)


def sure_kl(of: DistributionPair) -> Tensor:
    """max p · KL(q‖p): forgiven where the target is not sure."""
    return -of.p.amax(-1) * (of.q * of.log_ratio).sum(-1)


def renyi2(of: DistributionPair) -> Tensor:
    """log Σ q²/p, Rényi's of order 2."""
    return (2.0 * of.log_q - of.log_p).logsumexp(-1)


def worst(of: DistributionPair) -> Tensor:
    """max log q/p among tokens of q >= 0.01, Rényi's of order ∞ without the tail."""
    return (-of.log_ratio).masked_fill(of.q < _ODD, 0.0).amax(-1)


TRIES = {f.__name__: f for f in (odds, unlikely, surprise, sure_kl, renyi2, worst)}
