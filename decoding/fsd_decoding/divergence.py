"""Divergences between the target's and the draft's next-token distributions.

Knows formulas (DIVERGENCES: adding one is adding one function) and their numerics. Knows nothing of
thresholds, rules or models. p is the target, q the draft, m = (p + q) / 2; natural logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from fsd_decoding.errors import UsageError

DIVERGENCE_VERSION = 1  # raised when a formula here changes: thresholds found before no longer apply

_LOG_ZERO = -1e30
_Formula = Callable[[Tensor, Tensor], Tensor]  # log p (…, V), log q (…, V) -> (…)


def _expectation(weights: Tensor, log_ratio: Tensor) -> Tensor:
    """Σ w·log_ratio over the vocabulary, where a zero weight counts nothing even against infinity."""
    return torch.where(weights > 0, weights * log_ratio, 0.0).sum(-1)


def _js(log_p: Tensor, log_q: Tensor) -> Tensor:
    """½KL(p‖m) + ½KL(q‖m), in [0, ln 2] (Lin 1991)."""
    p, q = log_p.exp(), log_q.exp()
    # Never infinite, so a finite stand-in for log 0 is exact here, and half the cost of masking.
    log_p, log_q, log_m = (x.clamp_min(_LOG_ZERO) for x in (log_p, log_q, (0.5 * (p + q)).log()))
    return 0.5 * (p * (log_p - log_m) + q * (log_q - log_m)).sum(-1)


def _ag(log_p: Tensor, log_q: Tensor) -> Tensor:
    """½KL(m‖p) + ½KL(m‖q), in [0, ∞] (Taneja's arithmetic–geometric mean divergence)."""
    log_m = torch.logaddexp(log_p, log_q) - math.log(2.0)
    return _expectation(log_m.exp(), log_m - 0.5 * (log_p + log_q))


def _kl_qp(log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(q‖p), in [0, ∞]; the published FSD code's `kl_div`."""
    return _expectation(log_q.exp(), log_q - log_p)


DIVERGENCES: Mapping[str, _Formula] = {"js": _js, "ag": _ag, "kl_qp": _kl_qp}


def divergence(name: str, target_logits: Tensor, draft_logits: Tensor) -> Tensor:
    """The named divergence at every position.

    Args:
        name: a key of `DIVERGENCES`.
        target_logits, draft_logits: (…, V) unnormalised log-probabilities of any float dtype; -inf is
            a probability of zero.

    Returns:
        (…) in nats, never negative, computed in fp32 (in fp64 where both inputs are fp64).

    Raises:
        UsageError: the name is unknown or the shapes differ.
    """
    formula = formula_of(name)
    if target_logits.shape != draft_logits.shape:
        shapes = f"{tuple(target_logits.shape)} and {tuple(draft_logits.shape)}"
        raise UsageError(f"target and draft logits have shapes {shapes}; they must be equal")
    log_p, log_q = (log_softmax(logits) for logits in (target_logits, draft_logits))
    return formula(log_p, log_q.to(log_p.dtype)).clamp_min(0.0)


def formula_of(name: str) -> _Formula:
    if name not in DIVERGENCES:
        raise UsageError(f"unknown divergence {name!r}; known: {', '.join(DIVERGENCES)}")
    return DIVERGENCES[name]


def log_softmax(logits: Tensor) -> Tensor:
    """(…, V) -> (…, V) in fp32, or fp64 where the logits are fp64."""
    return torch.log_softmax(logits if logits.dtype == torch.float64 else logits.float(), dim=-1)
