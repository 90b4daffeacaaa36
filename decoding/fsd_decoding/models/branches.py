"""Continuations of a text that share a forward pass: where their tokens are in a cache, and which of them each sees."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fsd_decoding.models.kv_cache import SlotCache


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
        cache: of the forward passes of `Branches`.
        starts: (B,) length of each text.
        places: (B, n) the scratch slot of the path's node at depths 1 … n; -1: none is to be moved.
    """
    behind = torch.arange(places.shape[1], device=places.device).expand_as(places)
    slots = starts[:, None] + behind
    cache.move(starts[:, None] + torch.where(places >= 0, places, behind), slots)
