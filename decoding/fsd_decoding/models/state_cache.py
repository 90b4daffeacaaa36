"""Cache of models with recurrent layers: the state after each of a row's last tokens, beside keys and values.

A recurrent layer has one state for a whole text, which cannot be cut where a draft is rejected. So the states after the
last few tokens are kept, each at the number of its token modulo their count. A pass begins with the state before its
first token, whatever was fed after that before: as with keys and values, feeding a position again is how a row is
rolled back. The state after the beginning that prompts share is long gone where the next of them comes, so a few such
states are set aside.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fsd_decoding.models.slot_cache import SlotCache
from fsd_decoding.tensors import to_device

BEGINNINGS = 2
"""The most beginnings of prompts whose states are set aside: what all problems begin with, and some longer one."""


class _Places(NamedTuple):
    """Where the states of a pass are, in all layers of a device."""

    before: Tensor  # (B,) those before the first token
    after: Tensor  # (B·n,) those that the pass stores


class StateCache(SlotCache):
    """A `SlotCache` that also has what transformers' linear attention, convolutions and Mamba layers ask a cache for.

    Args:
        rows, slots, device: see `SlotCache`.
        kept: states per row: one more than the most tokens of a pass that may be rolled back. Of longer passes only the
            state after the last token is kept.
    """

    def __init__(self, rows: int, slots: int, device: torch.device, kept: int) -> None:
        super().__init__(rows, slots, device)
        self.kept = kept
        # (rows·kept + 1, …): row after row, and last the zeros that a row begins with. Not (rows, kept, …): what is
        # indexed by one number is copied several times as fast.
        self._states: dict[Hashable, Tensor] = {}
        self._aside: dict[Hashable, Tensor] = {}  # (BEGINNINGS, …)
        # (B, …) before this pass; convolutions in a pass of one token put what is after it in its place.
        self._held: dict[Hashable, Tensor] = {}
        self._updated: set[Hashable] = set()
        self._recorded: Tensor | None = None
        self._places: dict[torch.device, _Places] = {}  # of this pass
        self.before: Tensor | None = None
        """The state (B, …) of the layer that runs, before the first token; None: all rows begin."""

    def aim(self, rows: Tensor | None, slots: Tensor, kv_length: int) -> None:
        """See `SlotCache`; slots are the tokens' positions, one after another."""
        super().aim(rows, slots, kv_length)
        self._held, self._updated, self._recorded, self._places = {}, set(), None, {}

    @property
    def records(self) -> bool:
        """Whether the state after each token of this pass is needed."""
        return self._count < self.kept

    @property
    def _count(self) -> int:
        return self._aimed.shape[1]

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """Returns what a convolution sees before the first token, which a pass of one token replaces in its place."""
        return self._before(("conv", layer_idx, state_idx))

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> None:
        """Returns nothing, so that the layer runs the scan of passes of any length, which goes on from `before`."""
        self.before = self._before(("state", layer_idx, state_idx))

    def update_conv_state(
        self, conv_states: Tensor, layer_idx: int, state_idx: int = 0, conv_kernel_size: int = 0, **kwargs: Any
    ) -> Tensor:
        """Stores inputs of a convolution (B, width, Q), and returns them after those that it still sees."""
        name = ("conv", layer_idx, state_idx)
        before = self._before(name)
        if before is None:
            before = conv_states.new_zeros((*conv_states.shape[:2], conv_kernel_size))
        whole = torch.cat([before, conv_states], -1)
        self._update(name, whole.unfold(-1, conv_kernel_size, 1)[..., 1:, :].movedim(2, 1))
        return whole

    def update_recurrent_state(
        self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any
    ) -> Tensor:
        """Stores the state (B, …) after the last token, and those after the others, if they were recorded."""
        recorded, self._recorded = self._recorded, None
        assert recorded is not None or not self.records
        states = recurrent_states.unsqueeze(1) if recorded is None else recorded
        self._update(("state", layer_idx, state_idx), states)
        return recurrent_states

    def record(self, states: Sequence[Tensor]) -> None:
        """Takes the states (B, …) after each token of the layer that runs, before it stores the last one."""
        several = len(states) > 1  # one need not be copied
        self._recorded = torch.stack(list(states), 1) if several else states[0].unsqueeze(1)

    def finish(self) -> None:
        """Stores what convolutions in a pass of one token have replaced in its place."""
        for name, state in self._held.items():
            if name not in self._updated:  # no recurrent one: scans tell theirs
                self._update(name, state.unsqueeze(1))

    def _before(self, name: Hashable) -> Tensor | None:
        """The state (B, …) before the first token; None: no pass has had one, so it is the first token of all rows."""
        if name not in self._held and name in self._states:
            stored = self._states[name]
            self._held[name] = stored.index_select(0, self._of_pass(stored.device).before)
        return self._held.get(name)

    def _update(self, name: Hashable, states: Tensor) -> None:
        """Stores the states (B, n, …) after the last n tokens."""
        states = states if self.records else states[:, -1:]
        if name not in self._states:
            self._states[name] = states.new_zeros((self.rows * self.kept + 1, *states.shape[2:]))
        stored = self._states[name]
        kept = states.flatten(0, 1).to(stored.dtype).contiguous()  # windows of a convolution overlap: slow to index
        stored.index_copy_(0, self._of_pass(stored.device).after, kept)
        self._updated.add(name)

    def _of_pass(self, device: torch.device) -> _Places:
        if device not in self._places:
            numbers = (self._numbers if self._rows is None else self._rows).to(device)
            first, slots = numbers * self.kept, self._aimed.to(device)
            start, stored = slots[:, 0], slots if self.records else slots[:, -1:]
            before = (first + start % self.kept).masked_fill(start == 0, self.rows * self.kept)
            self._places[device] = _Places(before, (first[:, None] + (stored + 1) % self.kept).flatten())
        return self._places[device]

    def copy(self, sources: Sequence[int], rows: Sequence[int], count: int) -> None:
        """See `SlotCache`; a row that is copied has not gone on after these tokens."""
        super().copy(sources, rows, count)
        for stored in self._states.values():
            source, row = to_device([sources, rows], stored.device)
            by_row = stored[:-1].unflatten(0, (self.rows, self.kept))
            by_row[row] = by_row[source]

    def set_aside(self, row: int, count: int, place: int) -> None:
        """Keeps the state after a row's first `count` tokens, from which it has not gone on, in one of BEGINNINGS."""
        for name, stored in self._states.items():
            if name not in self._aside:
                self._aside[name] = stored.new_zeros((BEGINNINGS, *stored.shape[1:]))
            self._aside[name][place] = stored[row * self.kept + count % self.kept]

    def take(self, places: Sequence[int], rows: Sequence[int], counts: Sequence[int]) -> None:
        """Gives rows the states that were set aside: each from its place, after so many tokens."""
        for name, stored in self._states.items():
            place, row, count = to_device([places, rows, counts], stored.device)
            stored[row * self.kept + count % self.kept] = self._aside[name][place]

    def keep(self, rows: Sequence[int]) -> None:
        super().keep(rows)
        for name, stored in self._states.items():
            by_row = stored[:-1].unflatten(0, (-1, self.kept))
            self._states[name] = torch.cat([by_row[to_device(rows, stored.device)].flatten(0, 1), stored[-1:]])

    @property
    def nbytes(self) -> int:
        return super().nbytes + self.state_bytes

    @property
    def state_bytes(self) -> int:
        kept = (*self._states.values(), *self._aside.values())
        return sum(stored.untyped_storage().nbytes() for stored in kept)

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        return bool(self._states)

    def is_recording_past(self, layer_idx: int) -> bool:
        return False
