"""Key-value cache whose slot index is the token's absolute position in its row, and attention over it.

Feeding a position again overwrites its slot, which is how a row is rolled back: nothing is copied, shapes stay the
same, and every row has its own length. Nodes of a tree share positions, so they are behind the text in any order, and
those that become text are moved.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import Cache

from fsd_common.errors import UsageError
from fsd_decoding.free_memory import available
from fsd_decoding.tensors import to_device

_STATES = "hidden states"


class SlotCache(Cache):
    """A transformers `Cache` whose size is fixed, unless it is enlarged.

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
        self._stores: dict[Hashable, Tensor] = {}  # (rows, heads, slots, size)
        self._kv_length = 0

    def aim(self, rows: Tensor | None, slots: Tensor, kv_length: int) -> None:
        """Sets what the next forward pass writes and reads.

        Args:
            rows: (B,) rows to write; None is all.
            slots: (B, Q) slots to write in each of them.
            kv_length: number of slots to read.
        """
        self._rows, self._aimed, self._kv_length = rows, slots, kv_length

    def finish(self) -> None:
        """Is called after the pass."""

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Stores keys and values (B, heads, Q, size), and returns those to attend to: (B, heads, kv_length, size)."""
        keys = self.store(key_states.transpose(1, 2), ("keys", layer_idx))
        return keys, self.store(value_states.transpose(1, 2), ("values", layer_idx))

    def store(self, states: Tensor, name: Hashable) -> Tensor:
        """Stores states in the order of a projection (B, Q, heads, size); returns as `update` does.

        Args:
            name: what they are: the same in every forward pass.
        """
        if name not in self._stores:
            self._stores[name] = states.new_zeros((self.rows, states.shape[2], self.slots, states.shape[3]))
        stored = self._stores[name]
        rows = self._numbers if self._rows is None else self._rows
        # Not by a flat view: two inputs that share memory make compiled graphs copy the whole cache.
        stored[rows[:, None].to(stored.device), :, self._aimed.to(stored.device)] = states
        return (
            stored[:, :, : self._kv_length]
            if self._rows is None
            else stored[self._rows.to(stored.device), :, : self._kv_length]
        )

    def keep_states(self, states: Sequence[Tensor]) -> None:
        """Stores hidden states (B, Q, H) of the tokens of this pass, beside their keys and values."""
        place = states[0].device  # layers of a model may be on several
        self.store(torch.cat([each.to(place) for each in states], -1).unsqueeze(2), _STATES)

    def states(self, rows: Tensor | None, slots: Tensor) -> Tensor:
        """Returns the hidden states that were kept of the tokens in slots (B, n) of rows (B,): (B, n, layers·H)."""
        stored = self._stores[_STATES]
        rows = self._numbers if rows is None else rows
        return stored[rows[:, None].to(stored.device), 0, slots.to(stored.device)]

    def move(self, sources: Tensor, slots: Tensor) -> None:
        """Copies what is in the slots `sources` (B, n) of all rows to `slots` (B, n), as if all at once."""
        for stored in self._stores.values():
            rows = self._numbers[:, None].to(stored.device)
            stored[rows, :, slots.to(stored.device)] = stored[rows, :, sources.to(stored.device)]

    def copy(self, sources: Sequence[int], rows: Sequence[int], count: int) -> None:
        """Copies the first `count` slots of the rows `sources` to `rows`, as if all at once."""
        for stored in self._stores.values():
            source, row = to_device([sources, rows], stored.device)
            stored[row, :, :count] = stored[source, :, :count]

    def set_aside(self, row: int, count: int, place: int) -> None:
        """Does nothing: keys and values of a row's first tokens are still in it."""

    def take(self, places: Sequence[int], rows: Sequence[int], counts: Sequence[int]) -> None:
        """Does nothing, as nothing was set aside."""

    def enlarge(self, slots: int) -> None:
        """Gives each row so many slots, by copying what is stored, one tensor after the other.

        Raises:
            torch.OutOfMemoryError: there is no memory for them, as a CPU would not say before it is written to.
        """
        missing = self.nbytes * (slots - self.slots) // self.slots
        free = available(str(self._numbers.device))
        if free is not None and missing > free:
            raise torch.OutOfMemoryError(f"{missing} bytes are needed for more slots, and {free} are free")
        for name, stored in self._stores.items():
            self._stores[name] = pad(stored, (0, 0, 0, slots - self.slots))
        self.slots = slots

    def keep(self, rows: Sequence[int]) -> None:
        """Drops all rows except these, which are renumbered in this order; others than the moved ones stay in place."""
        self.rows = len(rows)
        moves = [(new, old) for new, old in enumerate(rows) if new != old]
        for name, stored in self._stores.items():
            if moves:
                new, old = to_device(moves, stored.device).unbind(1)
                stored[new] = stored[old]
            self._stores[name] = stored[: self.rows]
        self._numbers = self._numbers[: self.rows]

    @property
    def nbytes(self) -> int:
        """Bytes that are allocated for keys and values, those of dropped rows included."""
        return sum(stored.untyped_storage().nbytes() for stored in self._stores.values())

    @property
    def state_bytes(self) -> int:
        """Bytes of states, which do not grow with a text."""
        return 0

    kept = 1
    """States of each row."""

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._kv_length

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return self.slots


@dataclass(frozen=True)
class Branches:
    """The tokens that a forward pass is run on, where those behind the text are nodes of trees.

    Behind its text a row has S scratch slots, for nodes; a node's position is that of its depth, whatever its slot.
    Every node sees the whole text.

    Args:
        starts: (B,) length of each text, which is the first scratch slot.
        slots: (B, Q) where the tokens are written.
        seen: (B, Q, S) bool, the scratch slots that each token sees, its own included.
        depths: (B, S) depth of the node in each scratch slot, 1 for the first after the text; (1, S) where rows agree.
    """

    starts: Tensor
    slots: Tensor
    seen: Tensor
    depths: Tensor

    def to(self, device: torch.device) -> Branches:
        """Returns them on another device."""
        return Branches(*(each.to(device) for each in (self.starts, self.slots, self.seen, self.depths)))

    def visible(self, slots: Tensor) -> Tensor:
        """Whether the tokens see what is in `slots` (S',): (B, Q, S')."""
        offsets, inside = self._scratch(slots)
        seen = self.seen.gather(2, offsets.unsqueeze(1).expand(-1, self.seen.shape[1], -1))
        return torch.where(inside.unsqueeze(1), seen, (slots < self.starts[:, None]).unsqueeze(1))

    def positions(self, slots: Tensor) -> Tensor:
        """The positions of the tokens in `slots` (S',): (B, S')."""
        offsets, inside = self._scratch(slots)
        depths = self.depths.expand(len(offsets), -1).gather(1, offsets)
        return torch.where(inside, self.starts[:, None] - 1 + depths, slots)

    def _scratch(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Which scratch slot each of `slots` (S',) is, and whether it is one: (B, S') each."""
        offsets, last = slots - self.starts[:, None], self.seen.shape[2] - 1
        return offsets.clamp(0, last), (offsets >= 0) & (offsets <= last)


def move_path(cache: SlotCache, starts: Tensor, places: Tensor) -> None:
    """Moves the states of a path from scratch slots to those behind the text, where its tokens are text from now on.

    Args:
        cache: what the forward passes of `Branches` wrote to.
        starts: (B,) length of each text.
        places: (B, n) the scratch slot of the path's node at depths 1 … n; -1: none is to be moved.
    """
    behind = torch.arange(places.shape[1], device=places.device).expand_as(places)
    slots = starts[:, None] + behind
    cache.move(starts[:, None] + torch.where(places >= 0, places, behind), slots)


FULL, SLIDING = "full_attention", "sliding_attention"
LINEAR, CONVOLUTION = "linear_attention", "conv"
ATTENTION_OF = {
    LINEAR: None, CONVOLUTION: None, "mlp": None, "moe": None, "hybrid": FULL, "hybrid_sliding": SLIDING,
}  # fmt: skip
"""The kind of attention in layers that are named by something else."""


class Masks:
    """Makes the additive masks of a model's kinds of attention.

    Args:
        model: a loaded causal LM.
        slots: the most tokens per row.

    Raises:
        UsageError: a layer is neither full nor sliding attention.
    """

    def __init__(self, model: Any, slots: int) -> None:
        self._windows = mask_kinds(model)
        self._slots = torch.arange(slots, device=model.device)
        self._visible, self._hidden = torch.tensor([0.0, torch.finfo(model.dtype).min]).to(model.device, model.dtype)

    def __call__(self, positions: Tensor, kv_length: int, branches: Branches | None = None) -> dict[str, Tensor]:
        """Returns the mask (B, 1, Q, kv_length) of each kind of attention, for queries at `positions` (B, Q)."""
        slots, query = self._slots[:kv_length], positions[:, None, :, None]
        unseen = slots > query if branches is None else ~branches.visible(slots).unsqueeze(1)
        places = slots
        if branches is not None and any(self._windows.values()):
            places = branches.positions(slots)[:, None, None]
        masks = {}
        for kind, window in self._windows.items():
            hidden = unseen if window is None else unseen | (places <= query - window)
            masks[kind] = torch.where(hidden, self._hidden, self._visible)
        return masks


def mask_kinds(model: Any) -> Mapping[str, int | None]:
    """Maps each kind of attention among the layers to its window; None is full attention. Recurrent layers have none.

    Raises:
        UsageError: a layer is neither full nor sliding attention.
    """
    config = model.config.get_text_config()
    window = getattr(config, "sliding_window", None)
    kinds = {ATTENTION_OF.get(kind, kind) for kind in getattr(config, "layer_types", None) or []}
    if kinds and kinds <= {None}:
        return {}
    kinds -= {None}
    if not kinds:
        # A configuration may name a window that no layer uses (Moshi).
        code = sys.modules[type(model.get_decoder()).__module__]
        kinds = {SLIDING if window and hasattr(code, "create_sliding_window_causal_mask") else FULL}
    if not kinds <= {FULL, SLIDING}:
        unsupported = ", ".join(sorted(kinds - {FULL, SLIDING}))
        raise UsageError(
            f"{config.model_type} has layers of kind {unsupported}, whose cache cannot be rolled back; "
            "use a model with full or sliding attention"
        )
    return {kind: window if kind == SLIDING else None for kind in sorted(kinds)}


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float | None) -> Tensor:
    """Computes grouped attention (B, G·K, Q, D) of the same arguments, the mask being folded by `fold_mask`."""
    rows, heads, queries, size = query.shape
    folded = query.reshape(rows, key.shape[1], -1, size)  # (B, K, G·Q, D)
    return scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=scaling).reshape(
        rows, heads, queries, -1
    )


def fold_mask(mask: Tensor, groups: int) -> Tensor:
    """Returns the mask of queries with `groups` heads folded into their axis; a single query broadcasts."""
    rows, heads, queries, slots = mask.shape
    if heads > 1:
        return mask.reshape(rows, -1, groups * queries, slots)
    return mask if groups == 1 or queries == 1 else mask.repeat(1, 1, groups, 1)
