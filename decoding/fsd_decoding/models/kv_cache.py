"""Key-value cache whose slot index is the token's absolute position in its row.

Feeding a position again overwrites its slot, which is how a row is rolled back: nothing is copied, shapes stay the
same, and every row has its own length.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import Cache


class SlotCache(Cache):
    """A transformers `Cache` of fixed size.

    Before each forward pass `aim` sets the rows and slots that it writes and the number of slots that it reads.
    Attention masks decide which of these a query attends to.

    Args:
        rows: number of rows.
        slots: tokens per row.
        device: where row offsets are; keys and values are where the layers are.
    """

    def __init__(self, rows: int, slots: int, device: torch.device) -> None:
        super().__init__(layers=[])  # transformers' own layers would copy on every update
        self.rows, self.slots = rows, slots
        self._begins = torch.arange(rows, device=device)[:, None] * slots
        self._stores: dict[int, tuple[Tensor, Tensor]] = {}  # layer -> (rows, slots, heads, size) of keys, values
        self._reach = 0

    def aim(self, rows: Tensor | None, positions: Tensor, reach: int) -> None:
        """Sets what the next forward pass writes and reads.

        Args:
            rows: (B,) rows to write; None is all.
            positions: (B, Q) slots to write in each of them.
            reach: number of slots to read.
        """
        begins = self._begins if rows is None else self._begins[rows]
        self._rows = rows
        self._written = (begins + positions).flatten()  # (B·Q,) in rows·slots
        self._reach = reach

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Stores keys and values (B, heads, Q, size), and returns those to attend to: (B, heads, reach, size)."""
        if layer_idx not in self._stores:
            self._stores[layer_idx] = (self._empty(key_states), self._empty(value_states))
        keys, values = self._stores[layer_idx]
        return self._write_and_read(keys, key_states), self._write_and_read(values, value_states)

    def _empty(self, states: Tensor) -> Tensor:
        return states.new_zeros((self.rows, self.slots, states.shape[1], states.shape[3]))

    def _write_and_read(self, store: Tensor, states: Tensor) -> Tensor:
        flat = states.transpose(1, 2).flatten(2).flatten(0, 1)  # (B·Q, heads·size)
        store.view(self.rows * self.slots, -1).index_copy_(0, self._written.to(store.device), flat)
        read = store[:, : self._reach] if self._rows is None else store[self._rows.to(store.device), : self._reach]
        return read.transpose(1, 2)

    def keep(self, rows: Tensor) -> None:
        """Drops all rows except these (R,), which are renumbered in this order."""
        for layer in self._stores:  # one at a time, so that two copies of only one layer exist at once
            keys, values = self._stores[layer]
            self._stores[layer] = keys[rows.to(keys.device)], values[rows.to(values.device)]
        self.rows = len(rows)
        self._begins = self._begins[: self.rows]

    @property
    def nbytes(self) -> int:
        """Bytes of all keys and values allocated so far."""
        return sum(tensor.nbytes for pair in self._stores.values() for tensor in pair)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._reach

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return self.slots
