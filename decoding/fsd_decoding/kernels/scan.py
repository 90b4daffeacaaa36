"""One pass over logits: softmax's normaliser, its entropy, the two likeliest tokens, and the one a keyed race picks.

Knows Triton. The pass is divided into splits, so that few rows keep a whole GPU busy; partial results are merged in a
fixed order, so that the same logits, laid out alike, always give the same answer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from fsd_decoding import noise
from fsd_decoding.graphs.tracing import as_graphs_can, opaque

BLOCK = 1024  # logits a program reads at once
_LEAST_SPLIT = 4 * BLOCK
_MOST_SPLITS = 64


@dataclass(frozen=True)
class Scan:
    """Of logits (B, N, V): (B, N) each."""

    normaliser: Tensor  # log Σ exp(logit); NaN, or -inf where nothing is possible
    entropy: Tensor  # of the softmax, in nats
    top: Tensor  # the likeliest token, the first of equals
    top1: Tensor  # its logit
    top2: Tensor  # the next logit, -inf where V is 1
    choice: Tensor  # the race's winner; without a race the likeliest


@dataclass(frozen=True)
class Race:
    """The exponential race among softmax(logits / temperature)."""

    temperature: float
    words: tuple[Tensor, Tensor]  # (B, N) each, of `noise.words`

    @classmethod
    def of(cls, temperature: float, keys: Tensor, positions: Tensor, stream: noise.Stream) -> Race:
        """keys (B, 2), positions (B, N)."""
        first, second = noise.words(keys, positions, stream)
        return cls(temperature, (first.contiguous(), second.contiguous()))


def splits(vocabulary: int) -> tuple[int, int]:
    """How many parts a row is read in, and how long each is, but for the last."""
    size = max(_LEAST_SPLIT, triton.cdiv(triton.cdiv(vocabulary, _MOST_SPLITS), BLOCK) * BLOCK)
    return triton.cdiv(vocabulary, size), size


def sums_dtype(*logits: Tensor) -> torch.dtype:
    """What sums are held in: fp64 for fp64 logits alone."""
    return torch.float64 if all(one.dtype == torch.float64 for one in logits) else torch.float32


def accumulator(*logits: Tensor) -> tl.dtype:
    """The same in Triton's words."""
    return tl.float64 if sums_dtype(*logits) == torch.float64 else tl.float32


def scan(logits: Tensor, race: Race | None = None) -> Scan:
    """logits (B, N, V) of any float dtype and strides, but for tokens side by side."""
    first, second = race.words if race is not None else (None, None)
    floats, tokens = as_graphs_can(_read, _opaque)(logits, first, second, race.temperature if race is not None else 1.0)
    largest, total, weighted, second_largest, won = floats
    top, choice = tokens
    best = largest.argmax(-1, keepdim=True)  # the first of equals, and parts lie in order
    winner = won.argmax(-1, keepdim=True)
    return Scan(
        *_merged(largest, total, weighted),
        top.gather(-1, best).squeeze(-1).long(),
        largest.gather(-1, best).squeeze(-1),
        torch.maximum(second_largest, largest.scatter(-1, best, -torch.inf)).amax(-1),
        choice.gather(-1, winner).squeeze(-1).long(),
    )


def _read(logits: Tensor, first: Tensor | None, second: Tensor | None, temperature: float) -> tuple[Tensor, Tensor]:
    """What every split found: (5, B, N, S) numbers and (2, B, N, S) tokens, in the order of `_scan`'s pointers."""
    rows, places, vocabulary = logits.shape
    parts, size = splits(vocabulary)
    floats, tokens = _found(logits, first, second, temperature)
    warmth = floats.new_full((1,), temperature)  # a number would be cut to fp32
    words = (warmth, warmth) if first is None else (first, second)  # without a race not looked at
    _scan[(rows * places, parts)](
        logits, *floats.unbind(), *tokens.unbind(), *words, warmth, places, vocabulary, size,
        *logits.stride()[:2], RACES=first is not None, INNER=accumulator(logits), BLOCK=BLOCK,
    )  # fmt: skip
    return floats, tokens


def _found(logits: Tensor, first: Tensor | None, second: Tensor | None, temperature: float) -> tuple[Tensor, Tensor]:
    """Memory for it."""
    rows, places, vocabulary = logits.shape
    shape = rows, places, splits(vocabulary)[0]
    floats = logits.new_empty((5, *shape), dtype=sums_dtype(logits))
    return floats, logits.new_empty((2, *shape), dtype=torch.int32)


_opaque = opaque(
    "scan", "(Tensor logits, Tensor? first, Tensor? second, float temperature) -> (Tensor, Tensor)", _read, _found
)


def _merged(largest: Tensor, total: Tensor, weighted: Tensor) -> tuple[Tensor, Tensor]:
    """Of all splits of each row, its normaliser and its entropy.

    (…, S) each: the largest logit, and with x what a logit is below it, Σ exp x and Σ x·exp x.
    """
    top = largest.amax(-1, keepdim=True)
    below = torch.where(total > 0, largest - top, 0.0)  # a split where nothing is possible counts nothing
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

    1 - v is exact in fp32. Small v win races, and a logarithm need not be accurate near 1: a series there.
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
    token, winner = part * size, part * size  # where all are -inf, the first
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
