"""The draft's logits, kept from the step that drafts tokens until the step that verifies them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fsd_decoding.errors import UsageError
from fsd_decoding.tensors import to_device


class KeptLogits:
    """Logits of drafts: one row of L draft steps a request. Subclasses say where they are, and which row is whose."""

    @property
    def kept(self) -> Tensor:
        """All of them: (rows, L, V)."""
        raise NotImplementedError

    def rows_of(self, requests: Sequence[str], counts: Sequence[int]) -> list[int] | None:
        """Returns the rows of the requests that have drafts to verify; None: the logits of one are not known.

        Args:
            requests: ids of the running requests.
            counts: number of tokens drafted for each; those without drafts get row 0.
        """
        raise NotImplementedError

    @property
    def length(self) -> int:
        """L, the largest number of tokens drafted for a request."""
        return self.kept.shape[1]

    def first(self, rows: int, count: int) -> Tensor:
        """Returns the logits of the first `count` draft steps of the first `rows` rows, without a copy: (B, n, V)."""
        return self.kept[:rows, :count]

    @property
    def flat(self) -> Tensor:
        """All logits, (rows · L, V): row r's step i is at r · L + i."""
        return self.kept.view(-1, self.kept.shape[-1])


class DraftLogits(KeptLogits):
    """Raw logits of the latest drafts of all running requests. Subclasses keep them.

    Args:
        vocabulary: V, the target's.
    """

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary = vocabulary
        self._row_of: dict[str, int] = {}
        self._steps = 0

    def add(self, logits: Tensor, changes: bool) -> None:
        """Keeps the logits (B, V) of the next draft step of B requests.

        Args:
            changes: whether they will be written into.
        """
        if logits.shape[-1] != self._vocabulary:
            raise UsageError(
                f"the draft has {logits.shape[-1]} logits, the target {self._vocabulary}; fsd compares distributions "
                "over one vocabulary"
            )
        self._keep(logits, changes)
        self._steps += 1

    def _keep(self, logits: Tensor, changes: bool) -> None:
        raise NotImplementedError

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


class BufferedDraftLogits(DraftLogits):
    """Draft logits in a buffer that is allocated once.

    vLLM measures free memory after the models are loaded, so the KV cache makes room for the buffer.

    Args:
        shape: largest number of running requests, L, V.
    """

    def __init__(self, shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(shape[-1])
        self._buffer = torch.zeros(shape, dtype=dtype, device=device)

    @property
    def kept(self) -> Tensor:
        return self._buffer

    def _keep(self, logits: Tensor, changes: bool) -> None:
        self._buffer[: len(logits), self._steps].copy_(logits)


class HostDraftLogits(DraftLogits):
    """Draft logits on a CPU, in vLLM's own tensors: L copies a step would take longer than joining them if needed."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__(vocabulary)
        self._of_steps: list[Tensor] = []  # (B, V) each
        self._joined: Tensor | None = None

    @property
    def kept(self) -> Tensor:
        if self._joined is None:
            self._joined = torch.stack(self._of_steps, 1)
        return self._joined

    def begin(self) -> None:
        super().begin()
        self._of_steps, self._joined = [], None

    def _keep(self, logits: Tensor, changes: bool) -> None:
        self._of_steps.append(logits.clone() if changes else logits)


class Layout:
    """Where the drafted tokens of a step are: N tokens of B requests, in order, n_b of each.

    Args:
        counts: n_b, number of tokens drafted for each request.
        rows: row of each request in `DraftLogits`.
    """

    def __init__(self, counts: Sequence[int], rows: Sequence[int]) -> None:
        self.counts = np.asarray(counts, np.int64)
        self.rows = np.asarray(rows, np.int64)
        self.owner, self.place = _owners_and_places(tuple(counts))  # (N,) index of the request, place in its draft

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


@lru_cache(maxsize=1024)
def _owners_and_places(counts: tuple[int, ...]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns for N tokens of B requests the index of the request, and the place in its draft, from 0: (N,) each."""
    numbers = np.asarray(counts, np.int64)
    owner = np.repeat(np.arange(len(counts)), numbers)
    place = np.arange(len(owner)) - (np.cumsum(numbers) - numbers)[owner]
    for shared in (owner, place):
        shared.setflags(write=False)
    return owner, place
