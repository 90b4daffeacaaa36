"""Fused GPU kernels in Triton: one pass over logits (normaliser, entropy, likeliest tokens, the token drawn), and a
second one for divergences, which never stores p or q.

Each computes what PyTorch operations define elsewhere and also compute where there is no Triton: `divergence.py` for
divergences, `noise.py` and `sampling.py` for choices. They have not been measured on a GPU yet. On a CPU, tests check
their numerics in Triton's interpreter (`TRITON_INTERPRET=1`), and that they compile for GPUs.

The vocabulary is divided into splits, so that few rows keep a whole GPU busy. Partial results are merged in a fixed
order, so that equal logits in the same memory layout always give equal results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from fsd_decoding.graphs.callers import launch_or_operation, opaque_operation

BLOCK = 1024  # logits that a program reads at a time
_LEAST_SPLIT = 4 * BLOCK
_MOST_SPLITS = 64


@dataclass(frozen=True)
class Scan:
    """Results of one pass over logits (B, N, V), each (B, N)."""

    normaliser: Tensor  # log Σ exp(logit); -inf where all logits are -inf, NaN where one is NaN
    entropy: Tensor  # of the softmax, in nats
    top: Tensor  # the likeliest token, the first of equals
    top1: Tensor  # its logit
    top2: Tensor  # the second largest logit, -inf where V is 1
    choice: Tensor  # the token drawn; without noise the likeliest one


def splits(vocabulary: int) -> tuple[int, int]:
    """Returns the number of splits of a vocabulary, and the size of each, in whole blocks.

    Kernels get the size as a constant, and mask what lies beyond the vocabulary: the interpreter of Triton 3.6 cannot
    loop up to a number that a kernel computes where NumPy is 2.4 or later.
    """
    size = max(_LEAST_SPLIT, triton.cdiv(triton.cdiv(vocabulary, _MOST_SPLITS), BLOCK) * BLOCK)
    size = min(size, triton.cdiv(vocabulary, BLOCK) * BLOCK)
    return triton.cdiv(vocabulary, size), size


def sums_dtype(*logits: Tensor) -> torch.dtype:
    """Returns the dtype of sums over these logits: fp64 where all of them are fp64, else fp32."""
    return torch.float64 if all(tensor.dtype == torch.float64 for tensor in logits) else torch.float32


def accumulator(*logits: Tensor) -> tl.dtype:
    """Returns `sums_dtype` as a Triton type."""
    return tl.float64 if sums_dtype(*logits) == torch.float64 else tl.float32


def scan(logits: Tensor, temperature: float = 1.0, words: tuple[Tensor, Tensor] | None = None) -> Scan:
    """Returns one pass over logits (B, N, V) of any float dtype and strides, with the vocabulary contiguous.

    Args:
        temperature: tokens are drawn from softmax(logits / temperature).
        words: the keyed noise that draws them, (B, N) each, from `noise.words`; None: the likeliest are taken.
    """
    first, second = (None, None) if words is None else (word.contiguous() for word in words)
    floats, tokens = launch_or_operation(_launch_scan, _scan_operation)(logits, first, second, temperature)
    largest, total, weighted, second_largest, won = floats
    top, choice = tokens
    best = largest.argmax(-1, keepdim=True)  # the first of equals, as splits are in order
    winner = won.argmax(-1, keepdim=True)
    return Scan(
        *_merged(largest, total, weighted),
        top.gather(-1, best).squeeze(-1).long(),
        largest.gather(-1, best).squeeze(-1),
        torch.maximum(second_largest, largest.scatter(-1, best, -torch.inf)).amax(-1),
        choice.gather(-1, winner).squeeze(-1).long(),
    )


def _launch_scan(
    logits: Tensor, first: Tensor | None, second: Tensor | None, temperature: float
) -> tuple[Tensor, Tensor]:
    """Results per split: (5, B, N, S) numbers and (2, B, N, S) tokens, in the order of `_scan`'s pointers."""
    rows, places, vocabulary = logits.shape
    parts, size = splits(vocabulary)
    floats, tokens = _allocate_splits(logits, first, second, temperature)
    warmth = floats.new_full((1,), temperature)  # a scalar argument would be rounded to fp32
    words = (warmth, warmth) if first is None else (first, second)  # placeholders, not read without noise
    _scan[(rows * places, parts)](
        logits, *floats.unbind(), *tokens.unbind(), *words, warmth, places, vocabulary,
        *logits.stride()[:2], DRAWS=first is not None, INNER=accumulator(logits), SIZE=size, BLOCK=BLOCK,
    )  # fmt: skip
    return floats, tokens


def _allocate_splits(
    logits: Tensor, first: Tensor | None, second: Tensor | None, temperature: float
) -> tuple[Tensor, Tensor]:
    """Uninitialised results of `_launch_scan`."""
    rows, places, vocabulary = logits.shape
    shape = rows, places, splits(vocabulary)[0]
    floats = logits.new_empty((5, *shape), dtype=sums_dtype(logits))
    return floats, logits.new_empty((2, *shape), dtype=torch.int32)


_scan_operation = opaque_operation(
    "scan",
    "(Tensor logits, Tensor? first, Tensor? second, float temperature) -> (Tensor, Tensor)",
    _launch_scan,
    _allocate_splits,
)


def _merged(largest: Tensor, total: Tensor, weighted: Tensor) -> tuple[Tensor, Tensor]:
    """Merges splits into the normaliser and the entropy, (…,) each.

    Args:
        largest: (…, S) the largest logit of each split.
        total: (…, S) Σ exp x, where x is a logit minus the split's largest.
        weighted: (…, S) Σ x·exp x.
    """
    top = largest.amax(-1, keepdim=True)
    below = torch.where(total > 0, largest - top, 0.0)  # a split of only -inf counts nothing
    share = below.exp()
    whole = (share * total).sum(-1)
    log = whole.log()
    return top.squeeze(-1) + log, log - (share * (weighted + below * total)).sum(-1) / whole


@triton.jit
def _mixed(x):
    """`noise._mix_`, on uint32."""
    x ^= x >> 16
    x *= 0x7FEB352D
    x ^= x >> 15
    x *= 0x846CA68B
    x ^= x >> 16
    return x


@triton.jit
def gumbel(first, second, tokens, INNER: tl.constexpr):
    """`noise.gumbel`: -log(-log(1 - v)), v = (k + ½)/2²³ of 23 random bits k.

    1 - v is exact in fp32. For small v, whose tokens are drawn, a series is used, because log may be inaccurate near 1.
    """
    golden = tl.full(tokens.shape, 0x9E3779B9, tl.uint32)
    mixed = first.to(tl.uint32, bitcast=True) ^ _mixed(tokens.to(tl.uint32) * golden)
    mixed = _mixed(mixed + second.to(tl.uint32, bitcast=True))
    v = ((mixed >> 9).to(INNER) + 0.5) * 1.1920928955078125e-07
    series = v * (1.0 + v * (0.5 + v * (0.3333333333333333 + v * (0.25 + v * (0.2 + v * 0.16666666666666666)))))
    waits = tl.where(v < 0.015625, series, -tl.log(1.0 - v))
    return -tl.log(waits)


@triton.jit
def _scan(
    logits, largest, total, weighted, second_largest, won, top, choice, first, second, temperature,
    places, vocabulary, row_stride, place_stride,
    DRAWS: tl.constexpr, INNER: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    source = logits + (row // places) * row_stride + (row % places) * place_stride
    out = row * tl.num_programs(1) + part
    nothing = tl.full((), float("-inf"), INNER)
    maximum, next_best, best = nothing, nothing, nothing
    summed, moment = tl.zeros((), INNER), tl.zeros((), INNER)
    token, winner = part * SIZE, part * SIZE  # the first token, where all logits are -inf
    if DRAWS:
        word, other, warmth = tl.load(first + row), tl.load(second + row), tl.load(temperature)
    for offset in range(0, SIZE, BLOCK):
        start = part * SIZE + offset
        at = start + tl.arange(0, BLOCK)
        x = tl.load(source + at, mask=at < vocabulary, other=float("-inf")).to(INNER)
        here, place = tl.max(x, 0, return_indices=True, return_indices_tie_break_left=True)
        behind = tl.max(tl.where(at == start + place, float("-inf"), x), 0)
        next_best = tl.maximum(tl.minimum(maximum, here), tl.maximum(next_best, behind))
        token = tl.where(here > maximum, start + place, token)
        above = tl.maximum(maximum, here)
        base = tl.where(above == float("-inf"), 0.0, above)
        sunk = tl.where(maximum == float("-inf"), 0.0, maximum - base)
        below = tl.where(x == float("-inf"), 0.0, x - base)
        each = tl.where(x == float("-inf"), 0.0, tl.exp(below))
        moment = tl.exp(sunk) * (moment + sunk * summed) + tl.sum(each * below, 0)
        summed = tl.exp(sunk) * summed + tl.sum(each, 0)
        maximum = above
        if DRAWS:
            noisy = tl.where(x == float("-inf"), x, x / warmth + gumbel(word, other, at, INNER))
            fastest, place = tl.max(noisy, 0, return_indices=True, return_indices_tie_break_left=True)
            winner = tl.where(fastest > best, start + place, winner)
            best = tl.maximum(best, fastest)
    tl.store(largest + out, maximum)
    tl.store(total + out, summed)
    tl.store(weighted + out, moment)
    tl.store(second_largest + out, next_best)
    tl.store(top + out, token)
    tl.store(won + out, best if DRAWS else maximum)
    tl.store(choice + out, winner if DRAWS else token)


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
    partial = launch_or_operation(_launch_compare, _compare_operation)(target, draft, p, q, ",".join(requested))
    sums = dict(zip(_SUMS, partial.sum(2).unbind(-1), strict=True))
    return {
        name: (_FINISH[name](sums[_NEEDS[name]], *scans) if name in _FINISH else sums[name]).clamp_min(0.0)
        for name in names
    }


def _launch_compare(
    target: Tensor, draft: Tensor, target_normaliser: Tensor, draft_normaliser: Tensor, names: str
) -> Tensor:
    """The requested sums over every split of the vocabulary, `names` separated by commas: (B, N, S, 6)."""
    rows, places, vocabulary = target.shape
    parts, size = splits(vocabulary)
    sums = _allocate_sums(target, draft, target_normaliser, draft_normaliser, names)
    requested = names.split(",")
    _compare[(rows * places, parts)](
        target, draft, target_normaliser, draft_normaliser, sums,
        places, vocabulary, *target.stride()[:2], *draft.stride()[:2],
        **{name.upper(): name in requested for name in _SUMS},
        COLUMNS=len(_SUMS), INNER=accumulator(target, draft), SIZE=size, BLOCK=BLOCK,
    )  # fmt: skip
    return sums


def _allocate_sums(
    target: Tensor, draft: Tensor, target_normaliser: Tensor, draft_normaliser: Tensor, names: str
) -> Tensor:
    """Uninitialised results of `_launch_compare`."""
    rows, places, vocabulary = target.shape
    return target.new_empty((rows, places, splits(vocabulary)[0], len(_SUMS)), dtype=sums_dtype(target, draft))


_compare_operation = opaque_operation(
    "compare", "(Tensor target, Tensor draft, Tensor target_normaliser, Tensor draft_normaliser, str names) -> Tensor",
    _launch_compare, _allocate_sums,
)  # fmt: skip


@triton.jit
def _expected(weights, log_ratio):
    """The sum of weights * log_ratio with 0·∞ = 0; a NaN weight stays NaN."""
    return tl.sum(tl.where(weights == 0.0, 0.0, weights * log_ratio), 0)


@triton.jit
def _compare(
    target, draft, target_normaliser, draft_normaliser, sums,
    places, vocabulary, target_row, target_place, draft_row, draft_place,
    JS: tl.constexpr, AG: tl.constexpr, KL_QP: tl.constexpr, KL_PQ: tl.constexpr, TV: tl.constexpr,
    SQUARES: tl.constexpr,
    COLUMNS: tl.constexpr, INNER: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    parts = tl.num_programs(1)
    p_source = target + (row // places) * target_row + (row % places) * target_place
    q_source = draft + (row // places) * draft_row + (row % places) * draft_place
    p_normal, q_normal = tl.load(target_normaliser + row).to(INNER), tl.load(draft_normaliser + row).to(INNER)
    zero = tl.zeros((), INNER)
    js, ag, kl_qp, kl_pq, tv, squares = zero, zero, zero, zero, zero, zero
    for offset in range(0, SIZE, BLOCK):
        start = part * SIZE + offset
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
