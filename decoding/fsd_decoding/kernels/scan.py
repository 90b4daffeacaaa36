"""Kernel for one pass over logits: normaliser, entropy, the two likeliest tokens, and the winner of a keyed race.

The vocabulary is divided into splits, so that few rows keep a whole GPU busy. Partial results are merged in a fixed
order, so that equal logits in the same memory layout always give equal results.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from fsd_decoding import noise
from fsd_decoding.graphs.tracing import launch_or_operation, opaque_operation

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
    choice: Tensor  # the winner of the race; without a race the likeliest token


@dataclass(frozen=True)
class Race:
    """A keyed exponential race, which samples from softmax(logits / temperature)."""

    temperature: float
    words: tuple[Tensor, Tensor]  # (B, N) each, from `noise.words`

    @classmethod
    def of(cls, temperature: float, keys: Tensor, positions: Tensor, stream: noise.Stream) -> Race:
        """Returns the race of these noise keys (B, 2) at these positions (B, N)."""
        first, second = noise.words(keys, positions, stream)
        return cls(temperature, (first.contiguous(), second.contiguous()))


def splits(vocabulary: int) -> tuple[int, int]:
    """Returns the number of splits of a vocabulary, and the size of each but the last."""
    size = max(_LEAST_SPLIT, triton.cdiv(triton.cdiv(vocabulary, _MOST_SPLITS), BLOCK) * BLOCK)
    return triton.cdiv(vocabulary, size), size


def sums_dtype(*logits: Tensor) -> torch.dtype:
    """Returns the dtype of sums over these logits: fp64 where all of them are fp64, else fp32."""
    return torch.float64 if all(tensor.dtype == torch.float64 for tensor in logits) else torch.float32


def accumulator(*logits: Tensor) -> tl.dtype:
    """Returns `sums_dtype` as a Triton type."""
    return tl.float64 if sums_dtype(*logits) == torch.float64 else tl.float32


def scan(logits: Tensor, race: Race | None = None) -> Scan:
    """Returns one pass over logits (B, N, V) of any float dtype and strides, with the vocabulary contiguous."""
    first, second = race.words if race is not None else (None, None)
    temperature = race.temperature if race is not None else 1.0
    floats, tokens = launch_or_operation(_launch, _operation)(logits, first, second, temperature)
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


def _launch(logits: Tensor, first: Tensor | None, second: Tensor | None, temperature: float) -> tuple[Tensor, Tensor]:
    """Results per split: (5, B, N, S) numbers and (2, B, N, S) tokens, in the order of `_scan`'s pointers."""
    rows, places, vocabulary = logits.shape
    parts, size = splits(vocabulary)
    floats, tokens = _allocate(logits, first, second, temperature)
    warmth = floats.new_full((1,), temperature)  # a scalar argument would be rounded to fp32
    words = (warmth, warmth) if first is None else (first, second)  # placeholders, not read without a race
    _scan[(rows * places, parts)](
        logits, *floats.unbind(), *tokens.unbind(), *words, warmth, places, vocabulary, size,
        *logits.stride()[:2], RACES=first is not None, INNER=accumulator(logits), BLOCK=BLOCK,
    )  # fmt: skip
    return floats, tokens


def _allocate(logits: Tensor, first: Tensor | None, second: Tensor | None, temperature: float) -> tuple[Tensor, Tensor]:
    """Uninitialised results of `_launch`."""
    rows, places, vocabulary = logits.shape
    shape = rows, places, splits(vocabulary)[0]
    floats = logits.new_empty((5, *shape), dtype=sums_dtype(logits))
    return floats, logits.new_empty((2, *shape), dtype=torch.int32)


_operation = opaque_operation(
    "scan", "(Tensor logits, Tensor? first, Tensor? second, float temperature) -> (Tensor, Tensor)", _launch, _allocate
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

    1 - v is exact in fp32. For small v, which win races, a series is used, because log may be inaccurate near 1.
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
    places, vocabulary, size, row_stride, place_stride,
    RACES: tl.constexpr, INNER: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    source = logits + (row // places) * row_stride + (row % places) * place_stride
    out = row * tl.num_programs(1) + part
    nothing = tl.full((), float("-inf"), INNER)
    maximum, next_best, best = nothing, nothing, nothing
    summed, moment = tl.zeros((), INNER), tl.zeros((), INNER)
    token, winner = part * size, part * size  # the first token, where all logits are -inf
    if RACES:
        word, other, warmth = tl.load(first + row), tl.load(second + row), tl.load(temperature)
    for start in range(part * size, tl.minimum((part + 1) * size, vocabulary), BLOCK):
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
        if RACES:
            raced = tl.where(x == float("-inf"), x, x / warmth + gumbel(word, other, at, INNER))
            fastest, place = tl.max(raced, 0, return_indices=True, return_indices_tie_break_left=True)
            winner = tl.where(fastest > best, start + place, winner)
            best = tl.maximum(best, fastest)
    tl.store(largest + out, maximum)
    tl.store(total + out, summed)
    tl.store(weighted + out, moment)
    tl.store(second_largest + out, next_best)
    tl.store(top + out, token)
    tl.store(won + out, best if RACES else maximum)
    tl.store(choice + out, winner if RACES else token)
