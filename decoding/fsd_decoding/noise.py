"""Keyed noise: the same (seed, problem, position, stream, token) always gives the same number.

Knows integer hashing and the exponential race. Holds no generator state, so what a problem gets does
not depend on its batch, its order or a restart. Knows nothing of models or rules.
"""

from __future__ import annotations

import hashlib
from enum import IntEnum

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
_GOLDEN = 0x9E3779B9


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


def _mix(x: Tensor) -> Tensor:
    """A 32-bit finalizer held in int64 (Wellons' `lowbias32`): bijective, and the same on every device."""
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & _MASK
    x = x ^ (x >> 15)
    x = (x * 0x846CA68B) & _MASK
    return x ^ (x >> 16)


def bits(keys: Tensor, positions: Tensor, stream: Stream, tokens: Tensor) -> Tensor:
    """32 random bits for every token at every position.

    Args:
        keys: (B, 2) from `problem_keys`.
        positions: (B, N) absolute positions of the tokens to emit.
        tokens: (V,) token ids.

    Returns:
        (B, N, V) int64 in [0, 2³²).
    """
    first = _mix((keys[:, :1] + positions * 4 + int(stream)) & _MASK)  # (B, N)
    second = _mix((keys[:, 1:] + first) & _MASK)
    spread = _mix((tokens * _GOLDEN) & _MASK)  # (V,)
    return _mix(((first.unsqueeze(-1) ^ spread) + second.unsqueeze(-1)) & _MASK)


def unit(random_bits: Tensor, dtype: torch.dtype) -> Tensor:
    """Bits to (0, 1): 23 of them and a half step, which fp32 holds exactly, so that 1 is never reached."""
    return ((random_bits >> 9).to(dtype) + 0.5) * 2.0**-23


def gumbel(keys: Tensor, positions: Tensor, stream: Stream, vocabulary: int, dtype: torch.dtype) -> Tensor:
    """-log E with E = -log1p(-v): argmax(log p + gumbel) is the exponential race argmin(E / p).

    Returns (B, N, V) of `dtype` on the device of `keys`.
    """
    tokens = torch.arange(vocabulary, device=keys.device)
    v = unit(bits(keys, positions, stream, tokens), dtype)
    return -torch.log(-torch.log1p(-v))


def uniform(keys: Tensor, positions: Tensor, stream: Stream, dtype: torch.dtype) -> Tensor:
    """One number in (0, 1) a position: (B, N)."""
    token = torch.zeros(1, dtype=torch.int64, device=keys.device)
    return unit(bits(keys, positions, stream, token), dtype).squeeze(-1)
