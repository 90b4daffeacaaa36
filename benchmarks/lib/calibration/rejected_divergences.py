"""Divergences that were tried for FSD and not adopted, for `benchmarks/divergences.py`.

Logits must be finite. docs/divergences.md says how these divergences compare with the adopted ones.
"""

from __future__ import annotations

from torch import Tensor

from fsd_decoding.divergence import DistributionPair

_ODD, _TIMES = 0.01, 3.0


def odds(of: DistributionPair) -> Tensor:
    """log p(argmax p) - log p(argmax q): small where the target itself is uncertain."""
    favourite = of.log_q.argmax(-1, keepdim=True)
    return of.log_p.amax(-1) - of.log_p.gather(-1, favourite).squeeze(-1)


def unlikely(of: DistributionPair) -> Tensor:
    """Σ (q - 3p)+, the hockey-stick divergence: the draft's excess where the target has less than a third as much."""
    return (of.q - _TIMES * of.p).clamp_min(0.0).sum(-1)


def surprise(of: DistributionPair) -> Tensor:
    """(E_q[-log p] - H(p))+ = (KL(q‖p) + H(q) - H(p))+: the excess surprisal of the draft's tokens to the target."""
    return ((of.p - of.q) * of.log_p).sum(-1)


def sure_kl(of: DistributionPair) -> Tensor:
    """max p · KL(q‖p): small where the target is uncertain."""
    return -of.p.amax(-1) * (of.q * of.log_ratio).sum(-1)


def renyi2(of: DistributionPair) -> Tensor:
    """log Σ q²/p, the Rényi divergence of order 2."""
    return (2.0 * of.log_q - of.log_p).logsumexp(-1)


def worst(of: DistributionPair) -> Tensor:
    """max log q/p over tokens with q >= 0.01, the Rényi divergence of order ∞ without the tail."""
    return (-of.log_ratio).masked_fill(of.q < _ODD, 0.0).amax(-1)


REJECTED = {f.__name__: f for f in (odds, unlikely, surprise, sure_kl, renyi2, worst)}
