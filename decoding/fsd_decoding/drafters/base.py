"""Interfaces of drafters, the sources of the draft distribution q."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor


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

    def prefill(self, rows: Tensor, tokens: Tensor, until: int) -> None:
        """Reads prompts into `rows` (R,).

        Args:
            rows: (R,) row indices.
            tokens: (R, >= until) token ids, padded on the right.
            until: positions from here on, and the last token of every row, are left to the next round.
        """

    def keep(self, rows: Sequence[int]) -> None:
        """Drops all rows except these, which are renumbered in this order."""

    def logits(self, tokens: Tensor, lengths: Tensor, step: int, reach: int) -> Tensor:
        """Returns raw logits (B, 1, V) of the token after the first `lengths + step` of every row.

        Args:
            tokens: (B, slots) token ids; positions from `lengths + step` on are uninitialised padding.
            lengths: (B,) lengths of the rows at the beginning of the round.
            step: number of tokens drafted in this round so far.
            reach: an upper bound of `lengths + step`, known on the host.
        """


@runtime_checkable
class DraftSource(Protocol):
    """Anything that can be passed in place of a draft model."""

    def drafter(self, rows: int, slots: int, vocabulary: int) -> Drafter:
        """Returns a drafter for `rows` rows of up to `slots` tokens, over `vocabulary` token ids."""
