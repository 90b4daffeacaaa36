"""Kernel for divergences: a second pass over the logits, which never stores p or q.

It uses the normalisers from the first pass (`scan.py`), and computes the sums over the vocabulary from which the
definitions in `divergence.py` follow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import triton
import triton.language as tl
from torch import Tensor

from fsd_decoding.graphs.tracing import launch_or_operation, opaque_operation
from fsd_decoding.kernels.scan import BLOCK, Scan, accumulator, splits, sums_dtype

_SUMS = ("js", "ag", "kl_qp", "kl_pq", "tv", "squares")  # in the order of their columns; 0 where not requested
_NEEDS = {name: name for name in _SUMS[:-1]} | {"hellinger": "squares", "doubt": "js"}  # divergence -> its sum
_FINISH: Mapping[str, Callable[[Tensor, Scan, Scan], Tensor]] = {
    "hellinger": lambda squares, p, q: squares.sqrt(),
    "doubt": lambda js, p, q: js + (q.entropy[:, : js.shape[1]] - p.entropy[:, : js.shape[1]]).clamp_min(0.0),
}


def supports(names: Sequence[str]) -> bool:
    """Whether the kernel computes all of these. Top-k forms ("js@50") and new entries of `DIVERGENCES` it does not."""
    return all(name in _NEEDS for name in names)


def compare(names: Sequence[str], target: Tensor, draft: Tensor, scans: tuple[Scan, Scan]) -> dict[str, Tensor]:
    """Returns divergences of target and draft logits.

    Args:
        names: divergences that `supports` accepts.
        target, draft: logits (B, N, V) of any float dtypes and strides, with the vocabulary contiguous.
        scans: first passes over both, of at least their first N positions.

    Returns:
        For each name (B, N) in nats, summed in fp32, or in fp64 where both logits are fp64.
    """
    p, q = (scan.normaliser[:, : target.shape[1]].contiguous() for scan in scans)
    requested = [name for name in _SUMS if name in {_NEEDS[name] for name in names}]
    partial = launch_or_operation(_launch, _operation)(target, draft, p, q, ",".join(requested))
    sums = dict(zip(_SUMS, partial.sum(2).unbind(-1), strict=True))
    return {
        name: (_FINISH[name](sums[_NEEDS[name]], *scans) if name in _FINISH else sums[name]).clamp_min(0.0)
        for name in names
    }


def _launch(target: Tensor, draft: Tensor, target_normaliser: Tensor, draft_normaliser: Tensor, names: str) -> Tensor:
    """The requested sums over every split of the vocabulary, `names` separated by commas: (B, N, S, 6)."""
    rows, places, vocabulary = target.shape
    parts, size = splits(vocabulary)
    sums = _allocate(target, draft, target_normaliser, draft_normaliser, names)
    requested = names.split(",")
    _compare[(rows * places, parts)](
        target, draft, target_normaliser, draft_normaliser, sums,
        places, vocabulary, size, *target.stride()[:2], *draft.stride()[:2],
        **{name.upper(): name in requested for name in _SUMS},
        COLUMNS=len(_SUMS), INNER=accumulator(target, draft), BLOCK=BLOCK,
    )  # fmt: skip
    return sums


def _allocate(target: Tensor, draft: Tensor, target_normaliser: Tensor, draft_normaliser: Tensor, names: str) -> Tensor:
    """Uninitialised results of `_launch`."""
    rows, places, vocabulary = target.shape
    return target.new_empty((rows, places, splits(vocabulary)[0], len(_SUMS)), dtype=sums_dtype(target, draft))


_operation = opaque_operation(
    "compare", "(Tensor target, Tensor draft, Tensor target_normaliser, Tensor draft_normaliser, str names) -> Tensor",
    _launch, _allocate,
)  # fmt: skip


@triton.jit
def _expected(weights, log_ratio):
    """The sum of weights * log_ratio with 0·∞ = 0; a NaN weight stays NaN."""
    return tl.sum(tl.where(weights == 0.0, 0.0, weights * log_ratio), 0)


@triton.jit
def _compare(
    target, draft, target_normaliser, draft_normaliser, sums,
    places, vocabulary, size, target_row, target_place, draft_row, draft_place,
    JS: tl.constexpr, AG: tl.constexpr, KL_QP: tl.constexpr, KL_PQ: tl.constexpr, TV: tl.constexpr,
    SQUARES: tl.constexpr,
    COLUMNS: tl.constexpr, INNER: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    parts = tl.num_programs(1)
    p_source = target + (row // places) * target_row + (row % places) * target_place
    q_source = draft + (row // places) * draft_row + (row % places) * draft_place
    p_normal, q_normal = tl.load(target_normaliser + row).to(INNER), tl.load(draft_normaliser + row).to(INNER)
    zero = tl.zeros((), INNER)
    js, ag, kl_qp, kl_pq, tv, squares = zero, zero, zero, zero, zero, zero
    for start in range(part * size, tl.minimum((part + 1) * size, vocabulary), BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < vocabulary
        log_p = tl.load(p_source + at, mask=inside, other=float("-inf")).to(INNER) - p_normal
        log_q = tl.load(q_source + at, mask=inside, other=float("-inf")).to(INNER) - q_normal
        p, q = tl.exp(log_p), tl.exp(log_q)
        finite_p = tl.where(log_p < -1e30, -1e30, log_p)
        finite_q = tl.where(log_q < -1e30, -1e30, log_q)
        m = 0.5 * (p + q)
        log_m = tl.log(m)
        log_m = tl.where(log_m < -1e30, -1e30, log_m)
        if JS:
            js += 0.5 * tl.sum(p * (finite_p - log_m) + q * (finite_q - log_m), 0)
        if AG:
            ag += _expected(m, log_m - 0.5 * (log_p + log_q))
        if KL_QP:
            kl_qp += _expected(q, log_q - log_p)
        if KL_PQ:
            kl_pq += _expected(p, log_p - log_q)
        if TV:
            tv += 0.5 * tl.sum(tl.abs(p - q), 0)
        if SQUARES:
            root = tl.sqrt(p) - tl.sqrt(q)
            squares += 0.5 * tl.sum(root * root, 0)
    out = sums + (row * parts + part) * COLUMNS
    tl.store(out + 0, js)
    tl.store(out + 1, ag)
    tl.store(out + 2, kl_qp)
    tl.store(out + 3, kl_pq)
    tl.store(out + 4, tv)
    tl.store(out + 5, squares)
