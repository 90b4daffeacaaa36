"""Divergences between the target's and the draft's next-token distributions.

Knows formulas (DIVERGENCES: adding one is adding one function), their `@k` forms, and their numerics.
Knows nothing of thresholds, rules or models. p is the target, q the draft, m = (p + q) / 2; natural
logarithms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fsd_decoding.errors import UsageError
from fsd_decoding.kernels.dispatch import serves
from fsd_decoding.tensors import lazy

if TYPE_CHECKING:
    from fsd_decoding.kernels.scan import Scan

DIVERGENCE_VERSION = 1  # raised when a formula here changes: thresholds found before no longer apply

_LOG_ZERO = -1e30
_CHUNK = 1 << 24  # logits (rows x V) worked on at once: bounds what the formulas allocate, in fp32 64 MB each
_CPU_CHUNK = 1 << 15  # there small enough for the cache, and for memory that malloc keeps


class Pair:
    """p and q (…, V), and what formulas share of them: every part is computed once, when it is asked for."""

    def __init__(self, log_p: Tensor, log_q: Tensor) -> None:
        self.log_p, self.log_q = log_p, log_q

    @lazy
    def p(self) -> Tensor:
        return self.log_p.exp()

    @lazy
    def q(self) -> Tensor:
        return self.log_q.exp()

    @lazy
    def m(self) -> Tensor:
        return 0.5 * (self.p + self.q)

    @lazy
    def log_m(self) -> Tensor:
        return self.m.log().clamp_min(_LOG_ZERO)

    @lazy
    def finite_logs(self) -> tuple[Tensor, Tensor]:
        """log p and log q with a finite stand-in for log 0: exact where they are weighted by p and q, and half the
        cost of masking."""
        return self.log_p.clamp_min(_LOG_ZERO), self.log_q.clamp_min(_LOG_ZERO)

    @lazy
    def log_ratio(self) -> Tensor:
        """log p/q; NaN where both are 0."""
        return self.log_p - self.log_q

    @lazy
    def js(self) -> Tensor:
        log_p, log_q = self.finite_logs
        return 0.5 * (self.p * (log_p - self.log_m) + self.q * (log_q - self.log_m)).sum(-1)


_Formula = Callable[[Pair], Tensor]  # (…, V) -> (…)


def _expectation(weights: Tensor, log_ratio: Tensor) -> Tensor:
    """Σ w·log_ratio over the vocabulary, where a zero weight counts nothing even against infinity."""
    return (weights * log_ratio).masked_fill_(weights == 0, 0.0).sum(-1)  # a NaN weight stays NaN


def _js(of: Pair) -> Tensor:
    """½KL(p‖m) + ½KL(q‖m), in [0, ln 2] (Lin 1991)."""
    return of.js


def _ag(of: Pair) -> Tensor:
    """½KL(m‖p) + ½KL(m‖q), in [0, ∞] (Taneja's arithmetic–geometric mean divergence)."""
    return _expectation(of.m, of.log_m - 0.5 * (of.log_p + of.log_q))


def _kl_qp(of: Pair) -> Tensor:
    """KL(q‖p), in [0, ∞]; the published FSD code's `kl_div`."""
    return -_expectation(of.q, of.log_ratio)


def _kl_pq(of: Pair) -> Tensor:
    """KL(p‖q), in [0, ∞]; the published FSD code's `kl_div_reversed`."""
    return _expectation(of.p, of.log_ratio)


def _tv(of: Pair) -> Tensor:
    """½ Σ|p − q|, in [0, 1]; 1 − tv is the chance that speculative decoding accepts."""
    return 0.5 * (of.p - of.q).abs().sum(-1)


def _hellinger(of: Pair) -> Tensor:
    """√(½ Σ(√p − √q)²), in [0, 1]."""
    return (0.5 * (of.p.sqrt() - of.q.sqrt()).square().sum(-1)).sqrt()


def _doubt(of: Pair) -> Tensor:
    """JS(p, q) + (H(q) - H(p))+, in [0, ln 2 + ln V]: the disagreement, and the nats by which the draft is less sure
    than the target.

    Ours, made for FSD: a draft that differs and is sure says it in other words; one that is unsure where the target is
    sure guesses. Measured in docs/divergences.md. Unlike the others it may grow when tokens are merged.
    """
    log_p, log_q = of.finite_logs
    return of.js + (of.p * log_p - of.q * log_q).sum(-1).clamp_min(0.0)


DIVERGENCES: Mapping[str, _Formula] = {
    "js": _js,
    "ag": _ag,
    "kl_qp": _kl_qp,
    "kl_pq": _kl_pq,
    "tv": _tv,
    "hellinger": _hellinger,
    "doubt": _doubt,
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
        UsageError: a name is unknown, the shapes differ, or logits are NaN, +inf or all -inf: then the position is
            named.
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
            raise UsageError(
                f"logits at position {place} of {tuple(bad.shape)} are NaN, +inf or all -inf; they must be numbers, "
                "with -inf for what is impossible"
            )
    return found


def unchecked(
    names: Sequence[str],
    target_logits: Tensor,
    draft_logits: Tensor,
    scanned: tuple[Scan | None, Scan | None] = (None, None),
) -> dict[str, Tensor]:
    """`divergences` without a look at the values, which on a GPU would wait for them: NaN where logits are.

    On a GPU they are computed by a kernel, without a table of the vocabulary's size; scanned: what was
    read of either's logits already.
    """
    if serves(target_logits, draft_logits) and (found := _fused(names, target_logits, draft_logits, scanned)):
        return found
    *places, vocabulary = target_logits.shape
    chunk = _CPU_CHUNK if target_logits.device.type == "cpu" else _CHUNK
    rows = max(1, chunk // vocabulary)
    both = (logits.reshape(-1, vocabulary).split(rows) for logits in (target_logits, draft_logits))
    chunks = [_of_chunk(names, p, q) for p, q in zip(*both, strict=True)]
    return {name: torch.cat([chunk[name] for chunk in chunks]).reshape(places) for name in names}


def check_name(name: str) -> None:
    """UsageError where `name` is no divergence; the known ones are listed."""
    known, at, k = name.partition("@") if isinstance(name, str) else ("", "", "")
    if known not in DIVERGENCES or (at and not (k.isdecimal() and int(k) > 0)):
        raise UsageError(
            f"unknown divergence {name!r}; known: {', '.join(DIVERGENCES)}, each also as 'js@50': on the "
            "target's 50 likeliest tokens and one bucket for the rest"
        )


def log_softmax(logits: Tensor) -> Tensor:
    """(…, V) -> (…, V) in fp32, or fp64 where the logits are fp64."""
    return torch.log_softmax(logits if logits.dtype == torch.float64 else logits.float(), dim=-1)


def entropy(logits: Tensor) -> Tensor:
    """In nats: (…, V) -> (…)."""
    if logits.numel() and serves(logits):
        from fsd_decoding.kernels.scan import scan

        return scan(_three(logits)).entropy.reshape(logits.shape[:-1])
    log = log_softmax(logits).clamp_min_(_LOG_ZERO)  # so that 0 · log 0 is 0; in place, as it is asked for every round
    return -log.exp().mul_(log).sum(-1)


def _fused(
    names: Sequence[str], target_logits: Tensor, draft_logits: Tensor, scanned: tuple[Scan | None, Scan | None]
) -> dict[str, Tensor] | None:
    """None where it is not the kernel's to compute."""
    from fsd_decoding.kernels.divergences import compare, knows
    from fsd_decoding.kernels.scan import scan

    dtypes = {target_logits.dtype, draft_logits.dtype}
    mixed = torch.float64 in dtypes and len(dtypes) > 1
    if not knows(names) or mixed or not target_logits.numel() or target_logits.shape != draft_logits.shape:
        return None
    target, draft = _three(target_logits), _three(draft_logits)
    compared = compare(names, target, draft, (scanned[0] or scan(target), scanned[1] or scan(draft)))
    return {name: one.reshape(target_logits.shape[:-1]) for name, one in compared.items()}


def _three(logits: Tensor) -> Tensor:
    """As kernels take them: (B, N, V)."""
    return logits if logits.dim() == 3 else logits.reshape(1, -1, logits.shape[-1])


def _of_chunk(names: Sequence[str], target_logits: Tensor, draft_logits: Tensor) -> dict[str, Tensor]:
    """(N, V), (N, V) -> for each name (N,)."""
    return of_pair(names, Pair(log_softmax(target_logits), log_softmax(draft_logits)))


def of_pair(names: Sequence[str], whole: Pair) -> dict[str, Tensor]:
    """`unchecked` for those who have the log-softmaxes already, and want to share what it computes of them."""
    pairs = {"": whole}
    found = {}
    for name in names:
        formula, _, k = name.partition("@")
        if k not in pairs:
            pairs[k] = _bucketed(whole, int(k))
        found[name] = DIVERGENCES[formula](pairs[k]).clamp_min(0.0)
    return found


def _bucketed(whole: Pair, k: int) -> Pair:
    """Both on the target's k likeliest tokens and one bucket: (N, V) -> (N, k + 1)."""
    if k >= whole.log_p.shape[-1]:
        return whole
    top = whole.log_p.topk(k, dim=-1).indices  # (N, k)

    def bucket(log: Tensor) -> Tensor:
        rest = log.scatter(-1, top, -torch.inf).logsumexp(-1, keepdim=True)
        return torch.cat([log.gather(-1, top), rest], -1)

    return Pair(bucket(whole.log_p), bucket(whole.log_q))
