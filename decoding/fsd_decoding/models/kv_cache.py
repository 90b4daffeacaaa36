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

    def __init__(self, rows: int, slots: int, device: torch.device) -> None:
        super().__init__(layers=[])  # transformers' own layers would copy on every update
        self.rows, self.slots = rows, slots
        self._begins = torch.arange(rows, device=device)[:, None] * slots
        self._stores: dict[int, tuple[Tensor, Tensor]] = {}  # layer -> (rows, slots, heads, size) of keys, values
        self._reach = 0

    def aim(self, rows: Tensor | None, positions: Tensor, reach: int) -> None:
        """The next forward writes `positions` (B, Q) of `rows` (B,; None: all) and reads slots < reach."""
        begins = self._begins if rows is None else self._begins[rows]
        self._rows = rows
        self._written = (begins + positions).flatten()  # (B·Q,) in rows·slots
        self._reach = reach

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Stores (B, heads, Q, size) and returns what attention reads: (B, heads, reach, size)."""
        if layer_idx not in self._stores:
            self._stores[layer_idx] = (self._empty(key_states), self._empty(value_states))
        keys, values = self._stores[layer_idx]
        return self._exchange(keys, key_states), self._exchange(values, value_states)

    def _empty(self, states: Tensor) -> Tensor:
        return states.new_zeros((self.rows, self.slots, states.shape[1], states.shape[3]))

    def _exchange(self, store: Tensor, states: Tensor) -> Tensor:
        flat = states.transpose(1, 2).flatten(2).flatten(0, 1)  # (B·Q, heads·size)
        store.view(self.rows * self.slots, -1).index_copy_(0, self._written.to(store.device), flat)
        seen = store[:, : self._reach] if self._rows is None else store[self._rows.to(store.device), : self._reach]
        return seen.transpose(1, 2)

    def keep(self, rows: Tensor) -> None:
        """Gives up all rows but these (R,), which are numbered anew in this order."""
        self._stores = {
            layer: (keys[rows.to(keys.device)], values[rows.to(values.device)])
            for layer, (keys, values) in self._stores.items()
        }
        self.rows = len(rows)
        self._begins = self._begins[: self.rows]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._reach

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return self.slots
