"""A step's drafted tokens, judged: which are accepted by divergence, and what is known of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fsd_calib.vllm_plugin.draft_logits import Layout
from fsd_calib.vllm_plugin.rejected_tokens import Looked
from fsd_calib.vllm_plugin.rejection_rule import accept_at, accept_certainly

Array = NDArray[Any]


class Judged(Protocol):
    """N drafted tokens of a step, judged by their divergences."""

    @property
    def layout(self) -> Layout:
        """Where they are."""
        ...

    def accept(self, logits: Tensor, drafted: Tensor) -> None:
        """Makes those with D <= T certain.

        Args:
            logits: (tokens, V) the target's, processed, of all drafted tokens of the step; changed in place.
            drafted: (tokens,) their ids; negative ones are padding.
        """
        ...

    @property
    def facts(self) -> Array | Sequence[Tensor]:
        """What is known of them once they are accepted: an array (3, N), or tensors (N,) or (n, N) on the device.

        The rows: D; whether D <= T; whether it is the target's argmax; columns of traces, if they are recorded.
        """
        ...


class JudgedTokens:
    """Tokens judged where their logits are.

    Args:
        divergences: (N,).
        fuzzy: (N,) bool: D <= T.
        measured: (columns, N) of traces; None where nothing is recorded.
        at: (N,) their places among all drafted tokens of the step, the others having no D; None: they are all.
    """

    def __init__(
        self, layout: Layout, divergences: Tensor, fuzzy: Tensor, measured: Tensor | None = None,
        at: Tensor | None = None,
    ) -> None:  # fmt: skip
        self.layout, self.divergences, self.fuzzy, self._measured, self._at = layout, divergences, fuzzy, measured, at
        self._most_likely: Tensor | None = None

    def spread(self, total: int) -> Tensor:
        """Returns `fuzzy` of all drafted tokens of the step: (total,)."""
        if self._at is None:
            return self.fuzzy
        return self.fuzzy.new_zeros(total).index_put_((self._at,), self.fuzzy)

    def accept(self, logits: Tensor, drafted: Tensor) -> None:
        self.accepted(accept_certainly(logits, drafted, self.spread(len(logits))))

    def accepted(self, most_likely: Tensor) -> None:
        """Notes which of all drafted tokens are the target's argmax: (tokens,) bool."""
        self._most_likely = most_likely if self._at is None else most_likely[self._at]

    @property
    def facts(self) -> Sequence[Tensor]:
        assert self._most_likely is not None
        facts = [self.divergences, self.fuzzy, self._most_likely]
        return facts if self._measured is None else [*facts, self._measured]


class JudgedOnHost:
    """Tokens of greedy requests, judged on the host: D is infinite where it was not needed."""

    def __init__(self, layout: Layout, facts: Array, fuzzy: Sequence[int]) -> None:
        """Takes the facts (3, N), and the places of the tokens with D <= T among all drafted ones of the step."""
        self.layout, self.facts, self._fuzzy = layout, facts, fuzzy

    @classmethod
    def of(cls, layout: Layout, accepted: Sequence[bool], looked: Looked, at: Tensor | None) -> Self:
        """Describes N tokens, of which the exact rule accepts some; `at` as of `JudgedTokens`."""
        fuzzy = [False] * len(accepted)
        for token in looked.fuzzy:
            fuzzy[token] = True
        facts = np.array([looked.divergences, fuzzy, accepted], np.float32)
        return cls(layout, facts, looked.fuzzy if at is None else at[looked.fuzzy].tolist())

    def accept(self, logits: Tensor, drafted: Tensor) -> None:
        accept_at(logits, drafted, self._fuzzy)
