"""Divergences between the target's and the draft's next-token distributions, and their top-k forms.

p is the target's distribution, q the draft's, m = (p + q) / 2; logarithms are natural. A new divergence is one
function, listed in `DIVERGENCES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fsd_common.errors import UsageError
from fsd_decoding.tensors import kernels_support, lazy, wide

if TYPE_CHECKING:
    from fsd_decoding.kernels import Scan


LOG_ZERO = -1e30
_CHUNK = 1 << 24  # logits (rows x V) per chunk; bounds each temporary of the formulas to 64 MB in fp32
_CPU_CHUNK = 1 << 15  # small enough for the CPU's cache, and for memory that malloc does not return to the system


class DistributionPair:
    """p and q (…, V) with the quantities that formulas share, each computed at most once, on first use."""

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
        return self.m.log().clamp_min(LOG_ZERO)

    @lazy
    def finite_logs(self) -> tuple[Tensor, Tensor]:
        """log p and log q with a finite value for log 0: exact where weighted by p and q, at half the cost of
        masking."""
        return self.log_p.clamp_min(LOG_ZERO), self.log_q.clamp_min(LOG_ZERO)

    @lazy
    def log_ratio(self) -> Tensor:
        """log p/q; NaN where both are 0."""
        return self.log_p - self.log_q

    @lazy
    def js(self) -> Tensor:
        log_p, log_q = self.finite_logs
        return 0.5 * (self.p * (log_p - self.log_m) + self.q * (log_q - self.log_m)).sum(-1)


_Formula = Callable[[DistributionPair], Tensor]  # (…, V) -> (…)


def _expectation(weights: Tensor, log_ratio: Tensor) -> Tensor:
    """Σ w·log_ratio over the vocabulary, with 0·∞ = 0."""
    return (weights * log_ratio).masked_fill_(weights == 0, 0.0).sum(-1)  # a NaN weight stays NaN


def _js(pair: DistributionPair) -> Tensor:
    """½KL(p‖m) + ½KL(q‖m), in [0, ln 2] (Lin 1991)."""
    return pair.js


def _ag(pair: DistributionPair) -> Tensor:
    """½KL(m‖p) + ½KL(m‖q), in [0, ∞] (Taneja's arithmetic–geometric mean divergence)."""
    return _expectation(pair.m, pair.log_m - 0.5 * (pair.log_p + pair.log_q))


def _kl_qp(pair: DistributionPair) -> Tensor:
    """KL(q‖p), in [0, ∞]; `kl_div` in the published FSD code."""
    return -_expectation(pair.q, pair.log_ratio)


def _kl_pq(pair: DistributionPair) -> Tensor:
    """KL(p‖q), in [0, ∞]; `kl_div_reversed` in the published FSD code."""
    return _expectation(pair.p, pair.log_ratio)


def _tv(pair: DistributionPair) -> Tensor:
    """½ Σ|p − q|, in [0, 1]; 1 − tv is the acceptance rate of speculative sampling."""
    return 0.5 * (pair.p - pair.q).abs().sum(-1)


def _hellinger(pair: DistributionPair) -> Tensor:
    """√(½ Σ(√p − √q)²), in [0, 1]."""
    return (0.5 * (pair.p.sqrt() - pair.q.sqrt()).square().sum(-1)).sqrt()


def _doubt(pair: DistributionPair) -> Tensor:
    """JS(p, q) + (H(q) - H(p))+, in [0, ln 2 + ln V]: the disagreement plus the draft's excess entropy in nats.

    Designed for FSD by this project: a draft that differs and is certain is probably a paraphrase; one that is
    uncertain where the target is certain is guessing. docs/divergences.md has measurements. Unlike the other
    divergences it may grow when tokens are merged into buckets.
    """
    log_p, log_q = pair.finite_logs
    return pair.js + (pair.p * log_p - pair.q * log_q).sum(-1).clamp_min(0.0)


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
    """Returns one divergence at every position; see `divergences`."""
    return divergences([name], target_logits, draft_logits)[name]


def divergences(names: Sequence[str], target_logits: Tensor, draft_logits: Tensor) -> dict[str, Tensor]:
    """Returns several divergences at every position, computed over shared log-softmaxes.

    Args:
        names: keys of `DIVERGENCES`, each optionally followed by "@k" ("js@50"): then the divergence is taken over the
            target's k likeliest tokens and one bucket for all others.
        target_logits, draft_logits: (…, V) unnormalised log-probabilities of any float dtype; -inf is
            probability 0.

    Returns:
        For each name a tensor (…) in nats, never negative, in fp32 (fp64 where both inputs are fp64).

    Raises:
        UsageError: a name is unknown, the shapes differ, or the logits at a position hold NaN or +inf or are all -inf.
    """
    for name in names:
        check_name(name)
    if target_logits.shape != draft_logits.shape:
        shapes = f"{tuple(target_logits.shape)} and {tuple(draft_logits.shape)}"
        raise UsageError(f"target and draft logits have shapes {shapes}; they must be equal")
    values = unchecked_divergences(names, target_logits, draft_logits)
    for invalid in (values[name].isnan() for name in names):
        if invalid.any():
            position = tuple(invalid.nonzero()[0].tolist())
            raise UsageError(
                f"logits at position {position} of {tuple(invalid.shape)} are NaN, +inf or all -inf; they must be "
                "finite, or -inf for impossible tokens"
            )
    return values


def unchecked_divergences(
    names: Sequence[str],
    target_logits: Tensor,
    draft_logits: Tensor,
    scans: tuple[Scan | None, Scan | None] = (None, None),
) -> dict[str, Tensor]:
    """Returns `divergences` without checking the values, which would synchronise with the GPU; NaN stays NaN.

    On a GPU a fused kernel computes them without temporaries of the vocabulary's size.

    Args:
        names, target_logits, draft_logits: as for `divergences`.
        scans: results of the kernel's first pass over the target's and the draft's logits, where they exist already.
    """
    if is_fused(names, target_logits, draft_logits):
        return _fused(names, target_logits, draft_logits, scans)
    *leading, vocabulary = target_logits.shape
    if 0 < target_logits.numel() <= chunk_elements(target_logits.device.type, vocabulary):
        return _of_chunk(names, target_logits, draft_logits)
    rows = chunk_elements(target_logits.device.type, vocabulary) // vocabulary
    both = (logits.reshape(-1, vocabulary).split(rows) for logits in (target_logits, draft_logits))
    chunks = [_of_chunk(names, p, q) for p, q in zip(*both, strict=True)]
    return {name: torch.cat([chunk[name] for chunk in chunks]).reshape(leading) for name in names}


def chunk_elements(device: str, vocabulary: int) -> int:
    """Returns the number of logits (rows x V) in a chunk, whose size each temporary of the formulas has."""
    return max(vocabulary, (_CPU_CHUNK if device.startswith("cpu") else _CHUNK) // vocabulary * vocabulary)


def check_name(name: str) -> None:
    """Raises UsageError where `name` is no divergence."""
    known, at, k = name.partition("@") if isinstance(name, str) else ("", "", "")
    if known not in DIVERGENCES or (at and not (k.isdecimal() and int(k) > 0)):
        raise UsageError(
            f"unknown divergence {name!r}; known: {', '.join(DIVERGENCES)}, each also with '@k' as in 'js@50': "
            "over the target's 50 likeliest tokens and one bucket for the rest"
        )


def log_softmax(logits: Tensor) -> Tensor:
    """Returns log-probabilities (…, V) in fp32, or in fp64 where the logits are fp64."""
    return torch.log_softmax(wide(logits), dim=-1)


def entropy(logits: Tensor) -> Tensor:
    """Returns the entropy of the softmax of logits (…, V), in nats: (…)."""
    if logits.numel() and kernels_support(logits):
        from fsd_decoding.kernels import scan

        return scan(_to_3d(logits)).entropy.reshape(logits.shape[:-1])
    log = log_softmax(logits).clamp_min_(LOG_ZERO)  # so that 0 · log 0 is 0; in place, as this runs every round
    return -log.exp().mul_(log).sum(-1)


def is_fused(names: Sequence[str], target_logits: Tensor, draft_logits: Tensor) -> bool:
    """Whether a kernel computes all of these from logits as they lie in memory, without temporaries of their size."""
    if not kernels_support(target_logits, draft_logits):
        return False
    from fsd_decoding.kernels import supports

    dtypes = {target_logits.dtype, draft_logits.dtype}
    mixed = torch.float64 in dtypes and len(dtypes) > 1
    return supports(names) and not mixed and target_logits.numel() > 0 and target_logits.shape == draft_logits.shape


def _fused(
    names: Sequence[str], target_logits: Tensor, draft_logits: Tensor, scans: tuple[Scan | None, Scan | None]
) -> dict[str, Tensor]:
    """`unchecked_divergences` by the fused kernel."""
    from fsd_decoding.kernels import compare, scan

    target, draft = _to_3d(target_logits), _to_3d(draft_logits)
    values = compare(names, target, draft, (scans[0] or scan(target), scans[1] or scan(draft)))
    return {name: value.reshape(target_logits.shape[:-1]) for name, value in values.items()}


def _to_3d(logits: Tensor) -> Tensor:
    """Logits (…, V) as kernels take them: (B, N, V)."""
    return logits if logits.dim() == 3 else logits.reshape(1, -1, logits.shape[-1])


def _of_chunk(names: Sequence[str], target_logits: Tensor, draft_logits: Tensor) -> dict[str, Tensor]:
    """(…, V), (…, V) -> for each name (…)."""
    return divergences_of_pair(names, DistributionPair(log_softmax(target_logits), log_softmax(draft_logits)))


def divergences_of_pair(names: Sequence[str], whole: DistributionPair) -> dict[str, Tensor]:
    """Returns `unchecked_divergences` of log-softmaxes that are at hand; `whole` keeps the shared quantities."""
    pairs = {"": whole}
    values = {}
    for name in names:
        formula, _, k = name.partition("@")
        if k not in pairs:
            pairs[k] = _bucketed(whole, int(k))
        values[name] = DIVERGENCES[formula](pairs[k]).clamp_min(0.0)
    return values


def _bucketed(whole: DistributionPair, k: int) -> DistributionPair:
    """Both distributions over the target's k likeliest tokens and one bucket for the rest: (N, V) -> (N, k + 1)."""
    if k >= whole.log_p.shape[-1]:
        return whole
    top = whole.log_p.topk(k, dim=-1).indices  # (N, k)

    def bucket(log: Tensor) -> Tensor:
        rest = log.scatter(-1, top, -torch.inf).logsumexp(-1, keepdim=True)
        return torch.cat([log.gather(-1, top), rest], -1)

    return DistributionPair(bucket(whole.log_p), bucket(whole.log_q))
