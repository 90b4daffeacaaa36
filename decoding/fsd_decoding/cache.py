"""SlotCache: keys and values where the slot index is the token's absolute position in its row.

Knows where to write and how far to read. Rolling back is feeding a position again: nothing is copied,
shapes stay, and every row has its own length. Knows nothing of models beyond the `Cache` interface.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import Cache


class SlotCache(Cache):
    """A transformers cache of `rows` × `slots`. Before each forward `aim` says which rows and slots it
    writes and how many slots it reads; attention masks decide which of those a query sees."""

    def __init__(self, rows: int, slots: int) -> None:
        super().__init__(layers=[])  # transformers' own layers would copy on every update
        self.rows, self.slots = rows, slots
        self._keys: dict[int, Tensor] = {}  # layer -> (rows, heads, slots, head size)
        self._values: dict[int, Tensor] = {}
        self._reach = 0

    def aim(self, rows: Tensor | None, positions: Tensor, reach: int) -> None:
        """The next forward writes `positions` (B, Q) of `rows` (B,; None: all) and reads slots < reach."""
        self._whole = rows is None
        self._row_index = torch.arange(self.rows, device=positions.device) if rows is None else rows
        self._positions = positions
        self._reach = reach

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Stores (B, heads, Q, size) and returns what attention reads: (B, heads, reach, size)."""
        stored = []
        for store, states in ((self._keys, key_states), (self._values, value_states)):
            if layer_idx not in store:
                shape = (self.rows, states.shape[1], self.slots, states.shape[3])
                store[layer_idx] = states.new_zeros(shape)
            slots = store[layer_idx]
            slots[self._row_index[:, None], :, self._positions] = states.transpose(1, 2)
            seen = slots[:, :, : self._reach]
            stored.append(seen if self._whole else seen[self._row_index])
        return stored[0], stored[1]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._reach

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return self.slots
