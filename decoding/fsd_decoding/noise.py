"""Keyed noise: the same (seed, problem, position, stream, token) always gives the same number.

Knows integer hashing and the exponential race. Holds no generator state, so what a problem gets does
not depend on its batch, its order or a restart. Knows nothing of models or rules.
"""

from __future__ import annotations

import hashlib
from enum import IntEnum
from functools import lru_cache

import torch
from torch import Tensor

from fsd_decoding.graphs.tracing import in_graph


def _word(value: int) -> Tensor:
    """A 32-bit constant in int32; as a tensor, which small operations take twice as fast as a number."""
    return torch.tensor(value - (value >> 31 << 32), dtype=torch.int32, device="cpu")


def _logical(shift: int) -> tuple[Tensor, Tensor]:
    return _word(shift), _word(0xFFFFFFFF >> shift)


# Words are int32 in two's complement: sums and products wrap, and a mask makes a right shift a logical one.
_BY_9, _BY_15, _BY_16 = _logical(9), _logical(15), _logical(16)
_GOLDEN, _FIRST, _SECOND = _word(0x9E3779B9), _word(0x7FEB352D), _word(0x846CA68B)


class Stream(IntEnum):
    """Independent noise for independent purposes at one position."""

    TOKEN = 0  # the race that picks a token; target and draft share it
    ACCEPT = 1  # u of speculative decoding's acceptance test
    RESIDUAL = 2  # the race among (p - q)+ after a rejection


def problem_keys(seed: int, problem_ids: list[int]) -> Tensor:
    """One 64-bit key a problem, as two 32-bit words in int64: (B, 2)."""
    digests = [hashlib.blake2b(f"{seed}/{i}".encode(), digest_size=8).digest() for i in problem_ids]
    words = [[int.from_bytes(d[:4], "little"), int.from_bytes(d[4:], "little")] for d in digests]
    return torch.tensor(words, dtype=torch.int64).reshape(-1, 2)


def _shifted(x: Tensor, by: tuple[Tensor, Tensor]) -> Tensor:
    shift, mask = by
    return (x >> shift).bitwise_and_(mask)


def _mix_(x: Tensor) -> Tensor:
    """A 32-bit finalizer (Wellons' `lowbias32`), in place: bijective, and the same on every device."""
    x ^= _shifted(x, _BY_16)
    x *= _FIRST
    x ^= _shifted(x, _BY_15)
    x *= _SECOND
    x ^= _shifted(x, _BY_16)
    return x


def _spread(tokens: Tensor) -> Tensor:
    return _mix_(tokens.to(torch.int32) * _GOLDEN)


def _spread_vocabulary(size: int, device: torch.device) -> Tensor:
    return _spread_anew(size, device) if in_graph() else _spread_kept(size, device)


def _spread_anew(size: int, device: torch.device) -> Tensor:
    return _spread(torch.arange(size, device=device))


_spread_kept = lru_cache(maxsize=8)(_spread_anew)


def bits(keys: Tensor, positions: Tensor, stream: Stream, tokens: Tensor) -> Tensor:
    """32 random bits for every token at every position.

    Args:
        keys: (B, 2) from `problem_keys`.
        positions: (B, N) absolute positions of the tokens to emit.
        tokens: (V,) token ids.

    Returns:
        (B, N, V) int32: all 32 bits count, the sign's as well.
    """
    return _bits(keys, positions, stream, _spread(tokens))


def words(keys: Tensor, positions: Tensor, stream: Stream) -> tuple[Tensor, Tensor]:
    """What all tokens' bits at a position are made of: (B, 2), (B, N) -> twice (B, N) int32."""
    own = keys.to(torch.int32)
    first = _mix_(own[:, :1] + (positions.to(torch.int32) * 4 + int(stream)))
    return first, _mix_(own[:, 1:] + first)


def _bits(keys: Tensor, positions: Tensor, stream: Stream, spread: Tensor) -> Tensor:
    first, second = words(keys, positions, stream)
    mixed = first.unsqueeze(-1) ^ spread
    mixed += second.unsqueeze(-1)
    return _mix_(mixed)


def unit(random_bits: Tensor, dtype: torch.dtype) -> Tensor:
    """Bits to (0, 1): 23 of them and a half step, which fp32 holds exactly, so that 1 is never reached."""
    return _shifted(random_bits, _BY_9).to(dtype).add_(0.5).mul_(2.0**-23)


def gumbel(keys: Tensor, positions: Tensor, stream: Stream, vocabulary: int, dtype: torch.dtype) -> Tensor:
    """-log E with E = -log1p(-v): argmax(log p + gumbel) is the exponential race argmin(E / p).

    Returns (B, N, V) of `dtype` on the device of `keys`.
    """
    v = unit(_bits(keys, positions, stream, _spread_vocabulary(vocabulary, keys.device)), dtype)
    return v.neg_().log1p_().neg_().log_().neg_()


def uniform(keys: Tensor, positions: Tensor, stream: Stream, dtype: torch.dtype) -> Tensor:
    """One number in (0, 1) a position: (B, N)."""
    token = torch.zeros(1, dtype=torch.int64, device=keys.device)
    return unit(bits(keys, positions, stream, token), dtype).squeeze(-1)
