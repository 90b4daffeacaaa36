"""Counts of token sequences that n-gram drafters use beside those of a row's own text."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save
from torch import Tensor

from fsd_common.argument_checks import check_count
from fsd_common.errors import UsageError
from fsd_common.files import atomic_write, read_regular

LONGEST_ORDER = 16
_FOLLOWERS = 32  # of a context that are kept: the most frequent ones
_ODD = 0x9E3779B97F4A7C15  # its powers make the places within a context count in its hash
_PARTS = ("contexts", "ends", "tokens", "counts")

Array = NDArray[Any]


@dataclass(frozen=True)
class _Table:
    """The contexts of one length, by their hashes in ascending order, and what followed them."""

    contexts: Array  # (n,) int64
    ends: Array  # (n,) int64, where each context's followers end in the next two
    tokens: Array  # (m,) int64
    counts: Array  # (m,) int64

    @classmethod
    def of(cls, hashes: Array, tokens: Array) -> _Table:
        """Counts the tokens (k,) that followed contexts with these hashes (k,)."""
        pairs, counts = np.unique(np.stack([hashes, tokens]), axis=1, return_counts=True)
        order = np.lexsort((pairs[1], -counts, pairs[0]))  # of each context the most frequent first
        (hashes, tokens), counts = pairs[:, order], counts[order]
        contexts, first = np.unique(hashes, return_index=True)
        place = np.arange(len(hashes)) - np.repeat(first, np.diff([*first, len(hashes)]))
        kept = place < _FOLLOWERS
        sizes = np.minimum(np.diff([*first, len(hashes)]), _FOLLOWERS)
        return cls(contexts, sizes.cumsum(), tokens[kept], counts[kept])

    @property
    def flawless(self) -> bool:
        """Whether the parts belong together, so that looking up a context reads within them."""
        parts = (self.contexts, self.ends, self.tokens, self.counts)
        if not all(part.dtype == np.int64 and part.ndim == 1 for part in parts):
            return False
        sizes = np.diff(self.ends, prepend=0)
        fits = len(self.contexts) == len(self.ends) and len(self.tokens) == len(self.counts) == sizes.sum()
        sorted_once = (self.contexts[1:] > self.contexts[:-1]).all() and len(self.contexts) > 0
        within = ((sizes > 0) & (sizes <= _FOLLOWERS)).all() and (self.tokens >= 0).all() and (self.counts > 0).all()
        return bool(fits and sorted_once and within)


@dataclass(frozen=True, eq=False)
class NGramCorpus:
    """Frozen counts of texts, for `NGram(order, corpus)`; equal where their content is.

    Of every context the 32 most frequent followers are kept. Contexts are stored by a 64-bit hash.

    Attributes:
        fingerprint: digest of the counts.
    """

    _tables: tuple[_Table, ...]  # by the length of contexts
    fingerprint: str = field(init=False)
    _on_device: dict[torch.device, list[list[Tensor]]] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        digest = hashlib.sha256()
        for name, part in self._parts().items():
            digest.update(f"{name}/{len(part)}/".encode() + part.tobytes())
        object.__setattr__(self, "fingerprint", digest.hexdigest())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NGramCorpus) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    @classmethod
    def of(cls, texts: Iterable[Sequence[int]], order: int) -> NGramCorpus:
        """Counts texts, as token ids, with contexts of up to `order` - 1 tokens.

        Raises:
            UsageError: the order is not a whole number from 1 to 16, or the texts hold no token.
        """
        check_order(order)
        hashes: list[list[Array]] = [[] for _ in range(order)]
        tokens: list[list[Array]] = [[] for _ in range(order)]
        for text in texts:
            ids = np.asarray(text, dtype=np.int64)
            context = np.zeros(len(ids), dtype=np.int64)
            for length in range(min(order, len(ids))):
                if length:
                    context[length:] += (ids[: len(ids) - length] + 1) * _power(length)
                hashes[length].append(context[length:].copy())
                tokens[length].append(ids[length:])
        if not tokens[0]:
            raise UsageError("the texts of an n-gram corpus hold no token; give at least one text")
        counted = zip(hashes, tokens, strict=True)
        return cls(tuple(_Table.of(np.concatenate(h), np.concatenate(t)) for h, t in counted if t))

    @property
    def vocabulary(self) -> int:
        """The least size of a vocabulary that has all tokens that are kept."""
        return max(int(table.tokens.max()) for table in self._tables) + 1

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the counts into one file, in the format of safetensors."""
        with atomic_write(Path(path)) as file:
            file.write(save(self._parts(), metadata={"kind": "fsd-calib n-grams"}))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> NGramCorpus:
        """Reads what `save` wrote.

        Raises:
            UsageError: the file cannot be read, or is something else or damaged.
        """
        try:
            parts = load(read_regular(Path(path)))
        except (OSError, SafetensorError) as error:
            raise UsageError(f"n-gram corpus {os.fspath(path)!r} cannot be read: {error}; write it anew") from error
        named = [[f"{name}.{length}" for name in _PARTS] for length in range(len(parts) // len(_PARTS))]
        whole = {name for names in named for name in names} == set(parts) and 0 < len(named) <= LONGEST_ORDER
        tables = [_Table(*(parts[name] for name in names)) for names in named] if whole else []
        if not tables or not all(table.flawless for table in tables):
            raise UsageError(f"{os.fspath(path)!r} is no n-gram corpus, or a damaged one; write it anew")
        return cls(tuple(tables))

    def followers(self, length: int, hashes: Tensor) -> tuple[Tensor, Tensor]:
        """Looks up contexts.

        Args:
            length: of the contexts.
            hashes: (B,) of `context_hash`.

        Returns:
            Tokens that followed each, and how often: (B, 32) int64 each, padded with token 0 that never did.
        """
        if length >= len(self._tables):
            nothing = hashes.new_zeros((len(hashes), 1))
            return nothing, nothing
        contexts, ends, tokens, counts = self._tensors(hashes.device)[length]
        at = torch.searchsorted(contexts, hashes).clamp_max(len(contexts) - 1)
        begins = torch.where(at > 0, ends[at - 1], 0)
        places = begins[:, None] + torch.arange(_FOLLOWERS, device=hashes.device)
        known = (places < ends[at][:, None]) & (contexts[at] == hashes)[:, None]
        places = places.clamp_max(len(tokens) - 1)
        return torch.where(known, tokens[places], 0), torch.where(known, counts[places], 0)

    def _tensors(self, device: torch.device) -> list[list[Tensor]]:
        """The tables on a device, where they stay at one address."""
        if device not in self._on_device:
            tables = [[table.contexts, table.ends, table.tokens, table.counts] for table in self._tables]
            self._on_device[device] = [[torch.tensor(part, device=device) for part in table] for table in tables]
        return self._on_device[device]

    def _parts(self) -> dict[str, Array]:
        return {
            f"{name}.{length}": getattr(table, name) for length, table in enumerate(self._tables) for name in _PARTS
        }


def check_order(order: object) -> None:
    """UsageError: not a whole number from 1 to 16."""
    check_count("order", order)
    if order > LONGEST_ORDER:  # type: ignore[operator]  # it is a number
        raise UsageError(f"order is {order}; it must be at most {LONGEST_ORDER}")


def context_term(tokens: Tensor, back: int) -> Tensor:
    """What the tokens (B,) that lie `back` before a place add to the hash of the context there."""
    return (tokens + 1) * _power(back)


def _power(exponent: int) -> int:
    """A power in 64 bits, in two's complement."""
    power = pow(_ODD, exponent, 1 << 64)
    return power - (power >> 63 << 64)
