"""Divergences between the target's and the draft's next-token distributions.

Knows formulas (DIVERGENCES: adding one is adding one function), their `@k` forms, and their numerics.
Knows nothing of thresholds, rules or models. p is the target, q the draft, m = (p + q) / 2; natural
logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from fsd_decoding.errors import UsageError

DIVERGENCE_VERSION = 1  # raised when a formula here changes: thresholds found before no longer apply

_LOG_ZERO = -1e30
_CHUNK = 1 << 24  # logits (rows x V) worked on at once: bounds what the formulas allocate, in fp32 64 MB each
_Formula = Callable[[Tensor, Tensor], Tensor]  # log p (…, V), log q (…, V) -> (…)


def _expectation(weights: Tensor, log_ratio: Tensor) -> Tensor:
    """Σ w·log_ratio over the vocabulary, where a zero weight counts nothing even against infinity."""
    return torch.where(weights == 0, 0.0, weights * log_ratio).sum(-1)  # a NaN weight stays NaN


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


def _kl_pq(log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(p‖q), in [0, ∞]; the published FSD code's `kl_div_reversed`."""
    return _kl_qp(log_q, log_p)


def _tv(log_p: Tensor, log_q: Tensor) -> Tensor:
    """½ Σ|p − q|, in [0, 1]; 1 − tv is the chance that speculative decoding accepts."""
    return 0.5 * (log_p.exp() - log_q.exp()).abs().sum(-1)


def _hellinger(log_p: Tensor, log_q: Tensor) -> Tensor:
    """√(½ Σ(√p − √q)²), in [0, 1]."""
    return (0.5 * ((0.5 * log_p).exp() - (0.5 * log_q).exp()).square().sum(-1)).sqrt()


DIVERGENCES: Mapping[str, _Formula] = {
    "js": _js,
    "ag": _ag,
    "kl_qp": _kl_qp,
    "kl_pq": _kl_pq,
    "tv": _tv,
    "hellinger": _hellinger,
}


def divergence(name: str, target_logits: Tensor, draft_logits: Tensor) -> Tensor:
    """The named divergence at every position; see `divergences`."""
    return divergences([name], target_logits, draft_logits)[name]


def divergences(names: Sequence[str], target_logits: Tensor, draft_logits: Tensor) -> dict[str, Tensor]:
    """Several divergences over shared log-softmaxes.

    Args:
        names: keys of `DIVERGENCES`, or such a key and `@k`: the same on the target's k likeliest tokens
            and one bucket for the rest ("js@50").
        target_logits, draft_logits: (…, V) unnormalised log-probabilities of any float dtype; -inf is
            a probability of zero.

    Returns:
        for each name (…) in nats, never negative, computed in fp32 (in fp64 where both inputs are fp64).

    Raises:
        UsageError: a name is unknown, the shapes differ, or logits are NaN (or +inf): the position is named.
    """
    for name in names:
        check_name(name)
    if target_logits.shape != draft_logits.shape:
        shapes = f"{tuple(target_logits.shape)} and {tuple(draft_logits.shape)}"
        raise UsageError(f"target and draft logits have shapes {shapes}; they must be equal")
    found = unchecked(names, target_logits, draft_logits)
    for bad in (found[name].isnan() for name in names):
        if bad.any():
            place = tuple(bad.nonzero()[0].tolist())
            raise UsageError(f"logits at position {place} of {tuple(bad.shape)} are NaN or +inf; they must be numbers")
    return found


def unchecked(names: Sequence[str], target_logits: Tensor, draft_logits: Tensor) -> dict[str, Tensor]:
    """`divergences` without a look at the values, which on a GPU would wait for them: NaN where logits are."""
    *places, vocabulary = target_logits.shape
    rows = max(1, _CHUNK // vocabulary)
    both = (logits.reshape(-1, vocabulary).split(rows) for logits in (target_logits, draft_logits))
    chunks = [_of_chunk(names, p, q) for p, q in zip(*both, strict=True)]
    return {name: torch.cat([chunk[name] for chunk in chunks]).reshape(places) for name in names}


def check_name(name: str) -> None:
    """UsageError where `name` is no divergence; the known ones are listed."""
    known, at, k = name.partition("@")
    if known not in DIVERGENCES or (at and not (k.isdecimal() and int(k) > 0)):
        raise UsageError(
            f"unknown divergence {name!r}; known: {', '.join(DIVERGENCES)}, each also as 'js@50': on the "
            "target's 50 likeliest tokens and one bucket for the rest"
        )


def log_softmax(logits: Tensor) -> Tensor:
    """(…, V) -> (…, V) in fp32, or fp64 where the logits are fp64."""
    return torch.log_softmax(logits if logits.dtype == torch.float64 else logits.float(), dim=-1)


def _of_chunk(names: Sequence[str], target_logits: Tensor, draft_logits: Tensor) -> dict[str, Tensor]:
    """(N, V), (N, V) -> for each name (N,)."""
    log_p, log_q = log_softmax(target_logits), log_softmax(draft_logits)
    found = {}
    for name in names:
        formula, _, k = name.partition("@")
        pair = _bucketed(log_p, log_q, int(k)) if k else (log_p, log_q)
        found[name] = DIVERGENCES[formula](*pair).clamp_min(0.0)
    return found


def _bucketed(log_p: Tensor, log_q: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Both on the target's k likeliest tokens and one bucket: (N, V) -> (N, k + 1)."""
    if k >= log_p.shape[-1]:
        return log_p, log_q
    top = log_p.topk(k, dim=-1).indices  # (N, k)

    def bucket(log: Tensor) -> Tensor:
        rest = log.scatter(-1, top, -torch.inf).logsumexp(-1, keepdim=True)
        return torch.cat([log.gather(-1, top), rest], -1)

    return bucket(log_p), bucket(log_q)
