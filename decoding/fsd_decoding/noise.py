"""Counter-based random numbers, a pure function of (seed, problem, position, stream, token).

There is no generator state, so a problem's noise does not depend on its batch, its order or a restart. Sampling from it
is the exponential race, also known as the Gumbel-max trick.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache

import torch
from torch import Tensor

from fsd_decoding.graphs.callers import in_graph


def _word(value: int) -> Tensor:
    """A 32-bit constant in int32, as a tensor: small operations take it twice as fast as a Python number."""
    return torch.tensor(value - (value >> 31 << 32), dtype=torch.int32, device="cpu")


def _logical_shift(shift: int) -> tuple[Tensor, Tensor]:
    return _word(shift), _word(0xFFFFFFFF >> shift)


# Words are int32 in two's complement: sums and products wrap, and a mask makes a right shift a logical one.
_BY_9, _BY_15, _BY_16 = _logical_shift(9), _logical_shift(15), _logical_shift(16)
_GOLDEN, _FIRST, _SECOND = _word(0x9E3779B9), _word(0x7FEB352D), _word(0x846CA68B)


class Stream(IntEnum):
    """Independent noise for independent purposes at one position."""

    TOKEN = 0  # the race that picks a token, shared by target and draft
    ACCEPT = 1  # u of speculative decoding's acceptance test
    RESIDUAL = 2  # the race among (p - q)+ after a rejection


def problem_keys(seed: int, problem_ids: list[int]) -> Tensor:
    """Returns one 64-bit key per problem, as two 32-bit words in int64: (B, 2)."""
    return torch.tensor([_key(f"{seed}/{i}") for i in problem_ids], dtype=torch.int64).reshape(-1, 2)


def extended_key(words: Sequence[int], token: int) -> tuple[int, int]:
    """Returns the two words of a key for the text that `words` are the key of and one more token.

    So noise may belong to the tokens of a text, where several texts share a problem and a position.
    """
    return _key(f"{words[0]}/{words[1]}/{token}")


def _key(name: str) -> tuple[int, int]:
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")


def _shifted(x: Tensor, by: tuple[Tensor, Tensor]) -> Tensor:
    shift, mask = by
    return (x >> shift).bitwise_and_(mask)


def _mix_(x: Tensor) -> Tensor:
    """Hashes 32-bit words in place (Wellons' `lowbias32`): bijective, and the same on every device."""
    x ^= _shifted(x, _BY_16)
    x *= _FIRST
    x ^= _shifted(x, _BY_15)
    x *= _SECOND
    x ^= _shifted(x, _BY_16)
    return x


def _spread(tokens: Tensor) -> Tensor:
    return _mix_(tokens.to(torch.int32) * _GOLDEN)


def _spread_vocabulary(size: int, device: torch.device) -> Tensor:
    """The hashed ids of a whole vocabulary: (V,) int32."""
    return _spread(torch.arange(size, device=device))


_cached_spread_vocabulary = lru_cache(maxsize=8)(_spread_vocabulary)  # not inside graphs, which own their memory


def bits(keys: Tensor, positions: Tensor, stream: Stream, tokens: Tensor) -> Tensor:
    """Returns 32 random bits for every token at every position.

    Args:
        keys: (B, 2) from `problem_keys`.
        positions: (B, N) absolute positions of the tokens to emit.
        tokens: (V,) token ids.

    Returns:
        (B, N, V) int32, of which all 32 bits are random, the sign bit included.
    """
    return _bits(keys, positions, stream, _spread(tokens))


def words(keys: Tensor, positions: Tensor, stream: Stream) -> tuple[Tensor, Tensor]:
    """Returns the two words per position from which every token's bits there are derived.

    Args:
        keys: (B, 2) from `problem_keys`.
        positions: (B, N) absolute positions of the tokens to emit.

    Returns:
        Two tensors (B, N) int32.
    """
    key_words = keys.to(torch.int32)
    first = _mix_(key_words[:, :1] + (positions.to(torch.int32) * 4 + int(stream)))
    return first, _mix_(key_words[:, 1:] + first)


def _bits(keys: Tensor, positions: Tensor, stream: Stream, spread: Tensor) -> Tensor:
    first, second = words(keys, positions, stream)
    mixed = first.unsqueeze(-1) ^ spread
    mixed += second.unsqueeze(-1)
    return _mix_(mixed)


def unit(random_bits: Tensor, dtype: torch.dtype) -> Tensor:
    """Maps bits to (0, 1): 23 of them plus a half step, which fp32 represents exactly, so 1 is never reached."""
    return _shifted(random_bits, _BY_9).to(dtype).add_(0.5).mul_(2.0**-23)


def gumbel(keys: Tensor, positions: Tensor, stream: Stream, vocabulary: int, dtype: torch.dtype) -> Tensor:
    """Returns standard Gumbel noise (B, N, V) of `dtype` for every token at every position.

    It is -log E with E = -log1p(-v) for uniform v, so argmax(log p + gumbel) is the exponential race argmin(E / p).
    """
    spread = (_spread_vocabulary if in_graph() else _cached_spread_vocabulary)(vocabulary, keys.device)
    v = unit(_bits(keys, positions, stream, spread), dtype)
    return v.neg_().log1p_().neg_().log_().neg_()


def uniform(keys: Tensor, positions: Tensor, stream: Stream, dtype: torch.dtype, number: int = 0) -> Tensor:
    """Returns a uniform number in (0, 1) per position: (B, N). `number`: which of several."""
    token = torch.full((1,), number, dtype=torch.int64, device=keys.device)
    return unit(bits(keys, positions, stream, token), dtype).squeeze(-1)
