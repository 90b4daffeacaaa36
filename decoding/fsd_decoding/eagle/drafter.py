"""Drafting with an EAGLE head: chains and trees."""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from fsd_decoding.drafters.base import Frontier
from fsd_decoding.models.branches import Branches
from fsd_decoding.models.kv_cache import SlotCache
from fsd_decoding.models.runner import PREFILL_CHUNK, ModelRunner

if TYPE_CHECKING:
    from fsd_decoding.eagle.head import EagleHead


class EagleDrafter:
    """A `TreeDrafter` whose q is that of an EAGLE head, from the states that the target's runner keeps.

    Slot i holds the pair of the token at position i + 1 and the feature of position i. A drafted token is paired with
    the head's own feature. Once it is text, the next round feeds it again with the target's, so nothing is committed.
    The token of a row that has only one is paired with its own feature, in slot 0, and drafted ones follow it there.

    Args:
        head: the head.
        rows, slots: number of rows of its cache, and of slots in each.
        vocabulary: width that logits are cut to.
    """

    _target: ModelRunner
    _fed_again: int

    def __init__(self, head: EagleHead, rows: int, slots: int, vocabulary: int) -> None:
        self._head, self._vocabulary = head, vocabulary
        weight = next(head.parameters())
        self._cache, self._rotation = SlotCache(rows, slots, weight.device), Rotation(head.config, slots, weight)
        self._visible, self._hidden = weight.new_tensor(0.0), weight.new_tensor(torch.finfo(weight.dtype).min)
        self._slots = torch.arange(slots, device=weight.device)
        # Of the token that a chain drafted last, in one place for graphs; in a tree of the nodes before: (B, w, H).
        self._last = self._features = weight.new_zeros((rows, 1, head.config.hidden_size))

    def read(self, target: ModelRunner, longest_round: int) -> None:
        """See `ReadsTarget`."""
        self._target, self._fed_again = target, longest_round

    @property
    def identity(self) -> Hashable:
        return weakref.ref(self._head), self._fed_again, self._vocabulary

    def prefill(self, rows: Tensor, tokens: Tensor, until: int) -> None:
        """Feeds the pairs of prompts whose states the target has; the last ones are left to the next round."""
        for start in range(0, until - 1, PREFILL_CHUNK):
            slots = torch.arange(start, min(start + PREFILL_CHUNK, until - 1), device=tokens.device)
            slots = slots.expand(len(rows), -1)
            features = self._features_of_text(rows, slots)
            self._run(tokens.gather(1, slots + 1), features, slots, slots, int(slots.shape[1]) + start, rows=rows)

    def keep(self, rows: Sequence[int]) -> None:
        self._cache.keep(rows)

    def logits(self, tokens: Tensor, lengths: Tensor, step: int, reach: int) -> Tensor:
        if step == 0:
            # All pairs that the last round may have made text.
            slots = lengths[:, None] - 1 - torch.arange(self._fed_again, 0, -1, device=lengths.device)
            slots = slots.clamp_min(0)
            fed = tokens.gather(1, torch.minimum(slots + 1, lengths[:, None] - 1))
            features = self._features_of_text(None, slots)
        else:
            slots = _beyond(lengths)[:, None] - 1 + step
            fed, features = tokens.gather(1, lengths[:, None] - 1 + step), self._last[: len(tokens)]
        states = self._run(fed, features, slots, slots, reach)
        self._features = self._last[: len(tokens)].copy_(states[:, -1:])
        return self._logits(self._features)

    def expand(self, tokens: Tensor, lengths: Tensor, frontier: Frontier, reach: int) -> Tensor:
        starts, scratch = _beyond(lengths), frontier.seen.shape[2]
        depths = torch.arange(scratch, device=lengths.device)[None] // frontier.width + 1
        branches = Branches(starts, starts[:, None] + frontier.places, frontier.seen, depths)
        positions = (starts[:, None] + (frontier.depth - 1)).expand_as(frontier.tokens)
        before = frontier.parents.unsqueeze(-1).expand(-1, -1, self._features.shape[2])
        features = self._features.gather(1, before)
        self._features = self._run(frontier.tokens, features, positions, branches.slots, reach, branches)
        return self._logits(self._features)

    def commit(self, lengths: Tensor, places: Tensor) -> None:
        """Does nothing, as the next round feeds what is text again."""

    def _features_of_text(self, rows: Tensor | None, slots: Tensor) -> Tensor:
        """Returns features (B, Q, H), where the head is, from the states that the target keeps where its layers are."""
        return self._head.fuse(self._target.cache.states(rows, slots).to(self._slots.device))

    def _run(
        self,
        tokens: Tensor,
        features: Tensor,
        positions: Tensor,
        slots: Tensor,
        reach: int,
        branches: Branches | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:
        """Returns the head's own states (B, Q, H) of pairs of tokens and features, and keeps their keys and values.

        Args:
            tokens, positions, slots: (B, Q).
            features: (B, Q, H).
            reach: number of slots to attend to.
            branches: where the pairs are nodes of trees; None: each sees all slots up to its own.
            rows: (B,) rows of the cache; None: all.
        """
        self._cache.aim(rows, slots, reach)
        seen = self._slots[:reach]
        visible = seen <= slots.unsqueeze(-1) if branches is None else branches.visible(seen)
        mask = torch.where(visible, self._visible, self._hidden).unsqueeze(1)
        states: Tensor = self._head(tokens, features, self._rotation(positions), mask, self._cache)
        return states

    def _logits(self, states: Tensor) -> Tensor:
        logits = self._head.logits(states)[..., : self._vocabulary].to(states.device)  # its output may be the target's
        return logits if logits.dtype == torch.float64 else logits.float()


def _beyond(lengths: Tensor) -> Tensor:
    """The first slots (B,) behind the pairs of texts."""
    return (lengths - 1).clamp_min(1)


class Rotation:
    """The cosines and sines of a head's rotary encoding.

    Args:
        config: the head's, which says what kind of encoding it is.
        length: the most tokens of a text.
        like: a tensor of the device and dtype that they have.
    """

    def __init__(self, config: LlamaConfig, length: int, like: Tensor) -> None:
        rotary = LlamaRotaryEmbedding(config).to(like.device)
        cos, sin = rotary(like, torch.arange(length, device=like.device)[None])
        self._cos, self._sin = cos[0], sin[0]

    def __call__(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the cosines and sines of positions (B, Q): (B, Q, D) each."""
        return self._cos[positions], self._sin[positions]
