"""The draft's logits, kept from the step that drafts tokens until the step that verifies them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fsd_decoding.errors import UsageError
from fsd_decoding.tensors import to_device


class KeptLogits(Protocol):
    """Logits of drafts, one row of L draft steps for a request."""

    @property
    def length(self) -> int:
        """L, the largest number of tokens drafted for a request."""

    def rows_of(self, requests: Sequence[str], counts: Sequence[int]) -> list[int] | None:
        """Returns the rows of the requests that have drafts to verify; None: the logits of one are not known.

        Args:
            requests: ids of the running requests.
            counts: number of tokens drafted for each; those without drafts get row 0.
        """

    def first(self, rows: int, count: int) -> Tensor:
        """Returns the logits of the first `count` draft steps of the first `rows` rows, without a copy: (B, n, V)."""

    @property
    def flat(self) -> Tensor:
        """All logits, (rows · L, V): row r's step i is at r · L + i."""


class DraftLogits:
    """Raw logits of the latest drafts of all running requests, in a buffer that is allocated once.

    vLLM measures free memory after the models are loaded, so the KV cache makes room for the buffer.

    Args:
        rows: largest number of running requests.
        length: L, the largest number of tokens drafted for a request.
        vocabulary: V, the target's.
    """

    def __init__(self, rows: int, length: int, vocabulary: int, dtype: torch.dtype, device: torch.device) -> None:
        self._kept = torch.zeros(rows, length, vocabulary, dtype=dtype, device=device)
        self._of_step = self._kept.unbind(1)  # (rows, V) views, made once since a step fills each of them
        self._row_of: dict[str, int] = {}
        self._steps = 0

    @property
    def length(self) -> int:
        return self._kept.shape[1]

    def add(self, logits: Tensor) -> None:
        """Keeps the logits (B, V) of the next draft step of B requests."""
        if logits.shape[-1] != self._kept.shape[-1]:
            raise UsageError(
                f"the draft has {logits.shape[-1]} logits, the target {self._kept.shape[-1]}; fsd compares "
                "distributions over one vocabulary"
            )
        self._of_step[self._steps][: len(logits)].copy_(logits)
        self._steps += 1

    def begin(self) -> None:
        """Forgets the last drafts: those of the next step begin."""
        self._row_of, self._steps = {}, 0

    def end(self, requests: Sequence[str]) -> None:
        """Notes the ids of the requests, in the order of the rows, that the drafts since `begin` are of."""
        self._row_of = {request: row for row, request in enumerate(requests)} if self._steps else {}

    def rows_of(self, requests: Sequence[str], counts: Sequence[int]) -> list[int] | None:
        rows = [self._row_of.get(request) if count else 0 for request, count in zip(requests, counts, strict=True)]
        known = all(row is not None for row in rows) and max(counts, default=0) <= self._steps
        return [row or 0 for row in rows] if known else None

    def first(self, rows: int, count: int) -> Tensor:
        return self._kept[:rows, :count]

    @property
    def flat(self) -> Tensor:
        return self._kept.view(-1, self._kept.shape[-1])


class Layout:
    """Where the drafted tokens of a step are: N tokens of B requests, in order, n_b of each.

    Args:
        counts: n_b, number of tokens drafted for each request.
        rows: row of each request in `DraftLogits`.
    """

    def __init__(self, counts: Sequence[int], rows: Sequence[int]) -> None:
        self.counts = np.asarray(counts, np.int64)
        self.rows = np.asarray(rows, np.int64)
        self.owner = np.repeat(np.arange(len(self.counts)), self.counts)  # (N,) index of the request
        begins = np.cumsum(self.counts) - self.counts
        self.place = np.arange(self.count) - begins[self.owner]  # (N,) place in the draft, from 0

    @property
    def in_order(self) -> bool:
        """Whether every request has the same number of tokens, and request b's logits are in row b."""
        same = bool((self.counts == self.counts[0]).all()) if len(self.counts) else False
        return same and bool((self.rows == np.arange(len(self.rows))).all())

    def draft_index(self, length: int, device: torch.device) -> Tensor:
        """Returns the index of every token in `DraftLogits.flat`: (N,)."""
        return to_device((self.rows[self.owner] * length + self.place).tolist(), device)

    @property
    def count(self) -> int:
        """N."""
        return len(self.owner)
