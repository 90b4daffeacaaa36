"""Interfaces of drafters, the sources of the draft distribution q."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from fsd_decoding.models.runner import ModelRunner


class Drafter(Protocol):
    """Computes q step by step for a fixed number of rows.

    A round calls `logits` for steps 0, 1, …; after each step one token is appended to every row. The next round starts
    at step 0 again, from whatever length the rows then have: there is no other rollback.

    Steps may be captured in graphs, which address tensors by their place in memory. State that is kept from one step to
    the next must therefore be written in place, and `logits` must not read tensor values on the host.
    """

    @property
    def identity(self) -> Hashable:
        """Key of this drafter's graphs: everything that changes its output, apart from tensor values."""

    def prefill(self, rows: Tensor, tokens: Tensor, until: int, start: int = 0) -> None:
        """Reads prompts into `rows` (R,); it may leave what it reads to the next `logits`, or `catch_up`.

        Args:
            rows: (R,) row indices.
            tokens: (R, >= until) token ids, padded on the right.
            until: positions from here on, and the last token of every row, are left to the next round.
            start: the first positions, so many, were read or copied before.
        """

    def catch_up(self) -> None:
        """Reads now what `prefill` has left."""

    def copy(self, sources: Sequence[int], rows: Sequence[int], count: int) -> None:
        """Gives `rows` what was read of the first `count` tokens of the rows `sources`, which are the same."""

    def keep(self, rows: Sequence[int]) -> None:
        """Drops all rows except these, which are renumbered in this order."""

    def logits(self, tokens: Tensor, lengths: Tensor, step: int, kv_length: int) -> Tensor:
        """Returns raw logits (B, 1, V) of the token after the first `lengths + step` of every row.

        Args:
            tokens: (B, slots) token ids; positions from `lengths + step` on are uninitialised padding.
            lengths: (B,) lengths of the rows at the beginning of the round.
            step: number of tokens drafted in this round so far.
            kv_length: an upper bound of `lengths + step`, known on the host.
        """


@dataclass(frozen=True)
class Frontier:
    """The nodes of one level of a tree that a drafter is asked to go on from, w in every row.

    Args:
        paths: (B, w, depth) the tokens that lead to each node, its own last.
        parents: (B, w) the node before each, among those of the level before.
        places: (w,) numbers of the nodes in a round, where a drafter may keep its states of them.
        seen: (B, w, S) bool, the places of the nodes on each path, its own included.
        width: the number of places per level.
    """

    paths: Tensor
    parents: Tensor
    places: Tensor
    seen: Tensor
    width: int

    @property
    def depth(self) -> int:
        return self.paths.shape[2]

    @property
    def tokens(self) -> Tensor:
        """The nodes' own tokens: (B, w)."""
        return self.paths[..., -1]


class TreeDrafter(Drafter, Protocol):
    """A drafter that can also go on from several tokens at once.

    A round calls `logits` for step 0, `expand` once per further level, and `commit` at its end. A graph drafts a whole
    tree, so what a level leaves for the next need not stay in its place.
    """

    def expand(self, tokens: Tensor, lengths: Tensor, frontier: Frontier, kv_length: int) -> Tensor:
        """Returns raw logits (B, w, V) of the tokens after the nodes of a frontier.

        Args:
            tokens, lengths: as in `logits`; drafted tokens are not among `tokens`.
            frontier: the nodes.
            kv_length: an upper bound of `lengths` and the places behind them, known on the host.
        """

    def commit(self, lengths: Tensor, places: Tensor) -> None:
        """Makes the nodes that a round has passed part of the text.

        Args:
            lengths: (B,) lengths of the rows at the beginning of the round.
            places: (B, n) places of the nodes at depths 1 … n; -1: none, or one that was not expanded.
        """


@runtime_checkable
class DraftSource(Protocol):
    """Anything that can be passed in place of a draft model."""

    def drafter(self, rows: int, slots: int, vocabulary: int) -> Drafter:
        """Returns a drafter for `rows` rows of up to `slots` tokens, over `vocabulary` token ids."""


@runtime_checkable
class ReadsTarget(Protocol):
    """What a drafter has besides, if it drafts from the target's hidden states: its source has `target_layers`.

    The target then reads prompts before the drafter does.
    """

    def read(self, target: ModelRunner, longest_round: int) -> None:
        """Is called once, before the first prompt.

        Args:
            target: the target's runner, whose cache keeps the states of these layers.
            longest_round: the most tokens that a round adds to a text.
        """


def layers_read(source: Any) -> tuple[int, ...]:
    """Returns which of the target's hidden states a draft reads, as indices into transformers' `hidden_states`."""
    layers: tuple[int, ...] = getattr(source, "target_layers", ())
    return layers


def trained_on(source: Any) -> frozenset[int]:
    """Returns keys of the problems that a draft was trained on, as far as it says: they certify nothing with it."""
    keys: frozenset[int] = getattr(source, "trained_on", frozenset())
    return keys
