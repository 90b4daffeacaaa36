"""Key-value cache whose slot index is the token's absolute position in its row.

Feeding a position again overwrites its slot, which is how a row is rolled back: nothing is copied, shapes stay the
same, and every row has its own length. Nodes of a tree share positions, so they are behind the text in any order, and
those that become text are moved.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import Cache

from fsd_decoding.tensors import to_device

_STATES = "hidden states"


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
        self._numbers = torch.arange(rows, device=device)
        self._stores: dict[Hashable, _Store] = {}
        self._reach = 0

    def aim(self, rows: Tensor | None, slots: Tensor, reach: int) -> None:
        """Sets what the next forward pass writes and reads.

        Args:
            rows: (B,) rows to write; None is all.
            slots: (B, Q) slots to write in each of them.
            reach: number of slots to read.
        """
        self._rows, self._aimed, self._reach = rows, slots, reach
        self._written: dict[tuple[int, torch.device], Tensor] = {}  # by number of heads, and where a layer is

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Stores keys and values (B, heads, Q, size), and returns those to attend to: (B, heads, reach, size)."""
        keys = self.store(key_states.transpose(1, 2), ("keys", layer_idx))
        return keys, self.store(value_states.transpose(1, 2), ("values", layer_idx))

    def store(self, states: Tensor, name: Hashable) -> Tensor:
        """Stores states in the order of a projection (B, Q, heads, size); returns as `update` does.

        Args:
            name: what they are: the same in every forward pass.
        """
        if name not in self._stores:
            self._stores[name] = _Store.of(states.new_zeros((self.rows, states.shape[2], self.slots, states.shape[3])))
        stored, flat = self._stores[name]
        flat[self._places(states.shape[2], stored.device)] = states
        return (
            stored[:, :, : self._reach]
            if self._rows is None
            else stored[self._rows.to(stored.device), :, : self._reach]
        )

    def keep_states(self, states: Sequence[Tensor]) -> None:
        """Stores hidden states (B, Q, H) of the tokens of this pass, beside their keys and values."""
        place = states[0].device  # layers of a model may be on several
        self.store(torch.cat([each.to(place) for each in states], -1).unsqueeze(2), _STATES)

    def states(self, rows: Tensor | None, slots: Tensor) -> Tensor:
        """Returns the hidden states that were kept of the tokens in slots (B, n) of rows (B,): (B, n, layers·H)."""
        flat = self._stores[_STATES].flat
        rows = self._numbers if rows is None else rows
        return flat[self._flat(rows, slots, 1).squeeze(2).to(flat.device)]

    def _places(self, heads: int, device: torch.device) -> Tensor:
        """Where states of so many heads go in a flat store: (B, Q, heads)."""
        if (heads, device) not in self._written:
            rows = self._numbers if self._rows is None else self._rows
            self._written[heads, device] = self._flat(rows, self._aimed, heads).to(device)
        return self._written[heads, device]

    def _flat(self, rows: Tensor, slots: Tensor, heads: int) -> Tensor:
        """The places of slots (B, Q) of rows (B,) in a flat store of so many heads: (B, Q, heads)."""
        firsts = (rows[:, None] * heads + torch.arange(heads, device=rows.device)) * self.slots  # (B, heads)
        return firsts[:, None] + slots[:, :, None]

    def move(self, sources: Tensor, slots: Tensor) -> None:
        """Copies what is in the slots `sources` (B, n) of all rows to `slots` (B, n), as if all at once."""
        both = torch.cat([sources, slots]).to(self._numbers.device)  # (2·B, n)
        rows = self._numbers.repeat(2)
        moves: dict[tuple[int, torch.device], Tensor] = {}  # by number of heads, and where a layer is
        for stored, flat in self._stores.values():
            kind = stored.shape[1], flat.device
            if kind not in moves:
                moves[kind] = self._flat(rows, both, stored.shape[1]).to(flat.device)
            before, after = moves[kind].chunk(2)
            flat[after] = flat[before]

    def keep(self, rows: Sequence[int]) -> None:
        """Drops all rows except these, which are renumbered in this order; others than the moved ones stay in place."""
        self.rows = len(rows)
        moves = [(new, old) for new, old in enumerate(rows) if new != old]
        for name, (stored, _) in self._stores.items():
            if moves:
                new, old = to_device(moves, stored.device).unbind(1)
                stored[new] = stored[old]
            self._stores[name] = _Store.of(stored[: self.rows])
        self._numbers = self._numbers[: self.rows]

    @property
    def nbytes(self) -> int:
        """Bytes that are allocated for keys and values, those of dropped rows included."""
        return sum(store.stored.untyped_storage().nbytes() for store in self._stores.values())

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._reach

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return self.slots


class _Store(NamedTuple):
    """What is kept of one kind of states of a layer."""

    stored: Tensor  # (rows, heads, slots, size)
    flat: Tensor  # the same memory as (rows·heads·slots, size)

    @classmethod
    def of(cls, stored: Tensor) -> _Store:
        return cls(stored, stored.view(-1, stored.shape[-1]))
