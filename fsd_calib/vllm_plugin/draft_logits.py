"""The draft's logits, kept from the step that drafts tokens until the step that verifies them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fsd_common.errors import UsageError
from fsd_decoding.tensors import to_device

Array = NDArray[np.int64]


class KeptLogits:
    """Logits of drafts: one row of L draft steps a request. Subclasses say where they are, and which row is whose."""

    def rows_of(self, requests: Sequence[str], counts: Sequence[int]) -> list[int | None]:
        """Returns the rows of the requests; None for those whose drafts' logits are not known, or that have no drafts.

        Args:
            requests: ids of running requests.
            counts: number of tokens drafted for each.
        """
        raise NotImplementedError

    def at(self, rows: Array, steps: Array) -> Tensor:
        """Returns the logits of n draft steps, by their rows and their numbers in the draft: (n, V), a copy."""
        raise NotImplementedError

    def block(self, rows: int, count: int) -> Tensor | None:
        """Returns the logits of the first `count` draft steps of the first `rows` rows without a copy: (B, n, V).

        None: they are not in one tensor.
        """
        return None


class OneTensor(KeptLogits):
    """Draft logits in one tensor (rows, L, V)."""

    kept: Tensor

    def at(self, rows: Array, steps: Array) -> Tensor:
        length, device = self.kept.shape[1], self.kept.device
        return self.kept.view(-1, self.kept.shape[-1])[to_device((rows * length + steps).tolist(), device)]

    def block(self, rows: int, count: int) -> Tensor:
        return self.kept[:rows, :count]


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

    def rows_of(self, requests: Sequence[str], counts: Sequence[int]) -> list[int | None]:
        return [self._row_of.get(request) if 0 < count <= self._steps else None
                for request, count in zip(requests, counts, strict=True)]  # fmt: skip


class BufferedDraftLogits(DraftLogits, OneTensor):
    """Draft logits in a buffer that is allocated once.

    vLLM measures free memory after the models are loaded, so the KV cache makes room for the buffer.

    Args:
        shape: largest number of running requests, L, V.
    """

    def __init__(self, shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(shape[-1])
        self.kept = torch.zeros(shape, dtype=dtype, device=device)

    def _keep(self, logits: Tensor, changes: bool) -> None:
        self.kept[: len(logits), self._steps].copy_(logits)


class HostDraftLogits(DraftLogits):
    """Draft logits on a CPU, in vLLM's own tensors: few of them are looked at, so joining them would take longer."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__(vocabulary)
        self._of_steps: list[Tensor] = []  # (B, V) each

    def begin(self) -> None:
        super().begin()
        self._of_steps = []

    def at(self, rows: Array, steps: Array) -> Tensor:
        return torch.stack([self._of_steps[step][row] for row, step in zip(rows.tolist(), steps.tolist(), strict=True)])

    def _keep(self, logits: Tensor, changes: bool) -> None:
        self._of_steps.append(logits.clone() if changes else logits)


class Layout:
    """Where the drafted tokens of a step are: N tokens of B requests, in order, n_b of each.

    Args:
        counts: n_b, number of tokens drafted for each request.
        rows: row of each request in `KeptLogits`; of those without tokens any. Empty: nobody asks for them.
    """

    def __init__(self, counts: Sequence[int], rows: Sequence[int] = ()) -> None:
        self.counts = np.asarray(counts, np.int64)
        self.rows = np.asarray(rows, np.int64)
        self.owner, self.place = _owners_and_places(tuple(counts))  # (N,) index of the request, place in its draft

    @property
    def in_order(self) -> bool:
        """Whether every request has the same number of tokens, and request b's logits are in row b."""
        same = bool((self.counts == self.counts[0]).all()) if len(self.counts) else False
        return same and bool((self.rows == np.arange(len(self.rows))).all())

    @property
    def after(self) -> Array:
        """How many tokens of the same draft follow each one: (N,)."""
        return self.counts[self.owner] - self.place - 1

    @property
    def count(self) -> int:
        """N."""
        return len(self.owner)


@lru_cache(maxsize=1024)
def _owners_and_places(counts: tuple[int, ...]) -> tuple[Array, Array]:
    """Returns for N tokens of B requests the index of the request, and the place in its draft, from 0: (N,) each."""
    numbers = np.asarray(counts, np.int64)
    owner = np.repeat(np.arange(len(counts)), numbers)
    place = np.arange(len(owner)) - (np.cumsum(numbers) - numbers)[owner]
    for shared in (owner, place):
        shared.setflags(write=False)
    return owner, place
