"""Drafting without a model, from smoothed n-gram counts of the row's own text, and of a frozen corpus if there is one.

q is a function of the text alone, so there is nothing to train, prefill or roll back.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import index
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
from fsd_decoding.drafters.base import Frontier

LONGEST_ORDER = 16
_FOLLOWERS = 32  # of a context that are kept: the most frequent ones
_ODD = 0x9E3779B97F4A7C15  # its powers make the places within a context count in its hash
_PARTS = ("contexts", "ends", "tokens", "counts")
_TRAINED_ON = "trained_on"

Array = NDArray[Any]


_Table = tuple[Array, Array, Array, Array]
"""The contexts of one length (n,), by their hashes in ascending order; where the followers of each end (n,); and these
followers (m,) with their counts (m,). All are int64."""


def _table(hashes: Array, tokens: Array) -> _Table:
    """Counts the tokens (k,) that followed contexts with these hashes (k,)."""
    pairs, counts = np.unique(np.stack([hashes, tokens]), axis=1, return_counts=True)
    order = np.lexsort((pairs[1], -counts, pairs[0]))  # of each context the most frequent first
    (hashes, tokens), counts = pairs[:, order], counts[order]
    contexts, first = np.unique(hashes, return_index=True)
    sizes = np.diff([*first, len(hashes)])
    kept = np.arange(len(hashes)) - np.repeat(first, sizes) < _FOLLOWERS
    return contexts, np.minimum(sizes, _FOLLOWERS).cumsum(), tokens[kept], counts[kept]


def _is_flawless(table: _Table) -> bool:
    """Whether the parts belong together, so that looking up a context reads within them."""
    contexts, ends, tokens, counts = table
    if not all(part.dtype == np.int64 and part.ndim == 1 for part in table):
        return False
    sizes = np.diff(ends, prepend=0)
    fits = len(contexts) == len(ends) and len(tokens) == len(counts) == sizes.sum()
    sorted_once = (contexts[1:] > contexts[:-1]).all() and len(contexts) > 0
    within = ((sizes > 0) & (sizes <= _FOLLOWERS)).all() and (tokens >= 0).all() and (counts > 0).all()
    return bool(fits and sorted_once and within)


@dataclass(frozen=True, eq=False)
class NGramCorpus:
    """Frozen counts of texts, for `NGram(order, corpus)`; equal where their content is.

    Of every context the 32 most frequent followers are kept. Contexts are stored by a 64-bit hash.

    Attributes:
        fingerprint: digest of the counts.
        trained_on: keys of the problems whose texts were counted, such as `Problem.keys`; they certify nothing with it.
    """

    _tables: tuple[_Table, ...]  # by the length of contexts
    trained_on: frozenset[int] = frozenset()
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
    def of(cls, texts: Iterable[Sequence[int]], order: int, trained_on: Iterable[int] = ()) -> NGramCorpus:
        """Counts texts, as token ids, with contexts of up to `order` - 1 tokens.

        Args:
            trained_on: keys of the problems that the texts answer; see the attribute.

        Raises:
            UsageError: the order is not a whole number from 1 to 16, the texts hold no token, or `trained_on` is
                not made of whole numbers of 64 bits.
        """
        check_order(order)
        keys = frozenset(map(_checked_key, _listed(trained_on)))
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
        return cls(tuple(_table(np.concatenate(h), np.concatenate(t)) for h, t in counted if t), keys)

    @property
    def vocabulary(self) -> int:
        """The least size of a vocabulary that has all tokens that are kept."""
        return max(int(tokens.max()) for _, _, tokens, _ in self._tables) + 1

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the counts into one file, in the format of safetensors."""
        with atomic_write(Path(path)) as file:
            keys = {_TRAINED_ON: np.array(sorted(self.trained_on), np.int64)}
            file.write(save(self._parts() | keys, metadata={"kind": "fsd-calib n-grams"}))

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
        keys = parts.pop(_TRAINED_ON, np.empty(0, np.int64))
        named = [[f"{name}.{length}" for name in _PARTS] for length in range(len(parts) // len(_PARTS))]
        whole = {name for names in named for name in names} == set(parts) and 0 < len(named) <= LONGEST_ORDER
        tables: list[Any] = [tuple(parts[name] for name in names) for names in named] if whole else []
        if not tables or not all(map(_is_flawless, tables)) or keys.dtype != np.int64 or keys.ndim != 1:
            raise UsageError(f"{os.fspath(path)!r} is no n-gram corpus, or a damaged one; write it anew")
        return cls(tuple(tables), frozenset(keys.tolist()))

    def followers(self, length: int, hashes: Tensor) -> tuple[Tensor, Tensor]:
        """Looks up contexts.

        Args:
            length: the number of tokens in a context.
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
            self._on_device[device] = [[torch.tensor(part, device=device) for part in table] for table in self._tables]
        return self._on_device[device]

    def _parts(self) -> dict[str, Array]:
        named = ((length, zip(_PARTS, table, strict=True)) for length, table in enumerate(self._tables))
        return {f"{name}.{length}": part for length, parts in named for name, part in parts}


def _listed(trained_on: object) -> Iterable[object]:
    """UsageError: these are no keys at all, such as None."""
    if not isinstance(trained_on, Iterable) or isinstance(trained_on, str | bytes):
        raise UsageError(
            f"trained_on is {trained_on!r:.60}; it must be keys of problems, as `Problem.keys`, or be left out"
        )
    return trained_on


def _checked_key(key: object) -> int:
    """UsageError: not a whole number of 64 bits."""
    try:
        number = index(key)  # type: ignore[arg-type]  # it may be
    except TypeError:
        number = 1 << 64
    if not -(1 << 63) <= number < 1 << 63:
        raise UsageError(f"trained_on has {key!r:.60}; its keys must be whole numbers of 64 bits, as `Problem.keys`")
    return number


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


_ORDER = 3


@dataclass(frozen=True, repr=False)
class NGram:
    """A `DraftSource` of n-gram drafters, used as in `SpeculativeDecoder(target, NGram(), tokenizer)`.

    Args:
        order: n; the longest contexts have n - 1 tokens.
        corpus: counts of texts, used beside those of a row's own text.

    Raises:
        UsageError: the order is not a whole number from 1 to 16.
    """

    order: int = _ORDER
    corpus: NGramCorpus | None = None

    def __post_init__(self) -> None:
        check_order(self.order)

    @property
    def name(self) -> str:
        return repr(self)

    @property
    def trained_on(self) -> frozenset[int]:
        """See `NGramCorpus`."""
        return frozenset() if self.corpus is None else self.corpus.trained_on

    def __repr__(self) -> str:
        """What tells drafts apart, in cache keys too: settings other than the usual ones, and the corpus by content."""
        order = [] if self.order == _ORDER else [f"order={self.order}"]
        corpus = [] if self.corpus is None else [f"corpus={self.corpus.fingerprint[:16]}"]
        return f"NGram({', '.join(order + corpus)})"

    def drafter(self, rows: int, slots: int, vocabulary: int) -> NGramDrafter:
        """Returns a drafter. UsageError: the corpus holds tokens that the vocabulary does not have."""
        if self.corpus is not None and self.corpus.vocabulary > vocabulary:
            raise UsageError(
                f"the n-gram corpus holds token {self.corpus.vocabulary - 1}, and the models' vocabulary ends at "
                f"{vocabulary - 1}; make it of texts of their tokenizer"
            )
        return NGramDrafter(vocabulary, self.order, self.corpus)


class NGramDrafter:
    """A `Drafter` from counts of up to n tokens over prompt and generated text, with Witten–Bell smoothing.

    For a context h, let h' be h without its oldest token, c(h, w) the number of times that token w followed h, in the
    text and in the corpus together, c(h) the sum of these over w, and n(h) the number of different tokens that followed
    h. Then (Witten and Bell 1991, in the recursive form of Chen and Goodman, "An empirical study of smoothing
    techniques for language modeling", TR-10-98, section 2.5)

        q(w | h) = (c(h, w) + n(h) q(w | h')) / (c(h) + n(h)),

    where the distribution below the unigrams is uniform, 1 / V. q sums to one and is positive for every token. A step
    costs O(B n (slots + V)).

    Args:
        vocabulary: V.
        order: n.
        corpus: counts of other texts.
    """

    def __init__(self, vocabulary: int, order: int = _ORDER, corpus: NGramCorpus | None = None) -> None:
        self._vocabulary, self._order, self._corpus = vocabulary, order, corpus

    @property
    def identity(self) -> Hashable:
        return NGramDrafter, self._vocabulary, self._order, self._corpus

    def prefill(self, rows: Tensor, tokens: Tensor, until: int, start: int = 0) -> None:
        """Does nothing, as counts are taken from the text at every step."""

    def catch_up(self) -> None:
        """Does nothing, as nothing waits."""

    def copy(self, sources: Sequence[int], rows: Sequence[int], count: int) -> None:
        """Does nothing, as no state is kept per row."""

    def keep(self, rows: Sequence[int]) -> None:
        """Does nothing, as no state is kept per row."""

    def expand(self, tokens: Tensor, lengths: Tensor, frontier: Frontier, kv_length: int) -> Tensor:
        """Counts over the text and the tokens that lead to each node, as `logits` does in a chain of them."""
        rows, width, depth = frontier.paths.shape
        texts = tokens[:, :kv_length].repeat_interleave(width, 0)
        lengths = lengths.repeat_interleave(width)
        behind = lengths[:, None] + torch.arange(depth, device=lengths.device)
        texts.scatter_(1, behind, frontier.paths.flatten(0, 1))
        return self.logits(texts, lengths, depth, kv_length).view(rows, width, -1)

    def commit(self, lengths: Tensor, places: Tensor) -> None:
        """Does nothing, as no state is kept per node."""

    def logits(self, tokens: Tensor, lengths: Tensor, step: int, kv_length: int) -> Tensor:
        """Returns log q in fp32 (B, 1, V); see `Drafter.logits`."""
        text, ends = tokens[:, :kv_length], lengths[:, None] + step  # (B, kv_length), (B, 1)
        follows = (
            torch.arange(kv_length, device=text.device) < ends
        )  # (B, kv_length): these tokens follow the context h
        q = torch.full((len(text), 1), 1.0 / self._vocabulary, device=text.device)
        context = torch.zeros_like(lengths)  # (B,) hash
        for back in range(self._order):
            if back:
                # Padding before the text equals no token, so contexts that reach beyond its start do not match.
                before = torch.nn.functional.pad(text, (back, 0), value=-1)[:, :kv_length]
                oldest = text.gather(1, (ends - back).clamp_min(0))
                follows = follows & (before == oldest)
                if self._corpus is not None:
                    context = context + context_term(oldest.squeeze(1), back)
            if self._corpus is None:
                q = _witten_bell(text, follows, q, self._vocabulary)
            else:
                followers, counts = self._corpus.followers(back, context)
                q = _with_corpus(text, follows, q, self._vocabulary, followers, torch.where(ends >= back, counts, 0))
        return q.log_().unsqueeze(1)


def _witten_bell(text: Tensor, follows: Tensor, shorter: Tensor, vocabulary: int) -> Tensor:
    """Returns q(· | h), which is q(· | h') where the context h has no counts.

    Args:
        text: (B, kv_length) token ids.
        follows: (B, kv_length) bool, whether the token at each position follows an occurrence of h.
        shorter: (B, V) q(· | h'), or (B, 1) where it is uniform.
        vocabulary: V.

    Returns:
        (B, V).
    """
    weights = follows.to(shorter.dtype)  # (B, kv_length)
    counts = weights.new_zeros((len(text), vocabulary)).scatter_add_(1, text, weights)
    # n(h): occurrences weighted by 1 / count sum to one per distinct token. That takes (B, kv_length) work, not (B, V).
    distinct = (weights / counts.gather(1, text).clamp_min(1)).sum(1, keepdim=True).round()
    distinct = distinct.clamp_min(1)  # where h has no counts
    return counts.addcmul_(distinct, shorter).div_(weights.sum(1, keepdim=True) + distinct)


def _with_corpus(
    text: Tensor, follows: Tensor, shorter: Tensor, vocabulary: int, followers: Tensor, counts: Tensor
) -> Tensor:
    """Returns what `_witten_bell` does, of the text's counts and those of a corpus together.

    Args:
        followers, counts: (B, n) tokens that follow the context in the corpus, and how often; 0: never.
    """
    pooled = shorter.new_zeros((len(text), vocabulary)).scatter_add_(1, text, follows.to(shorter.dtype))
    pooled.scatter_add_(1, followers, counts.to(shorter.dtype))
    total, distinct = pooled.sum(1, keepdim=True), (pooled > 0).sum(1, keepdim=True).clamp_min(1)
    return pooled.addcmul_(distinct, shorter).div_(total + distinct)
