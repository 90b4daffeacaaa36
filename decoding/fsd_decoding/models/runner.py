"""A Hugging Face causal LM over rows of different lengths: its forward passes, and drafting by it."""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fsd_common.errors import UsageError
from fsd_decoding.models.forward import Part, check_model, has_states
from fsd_decoding.models.lean import forward_of
from fsd_decoding.models.slot_cache import Branches, Masks, SlotCache, mask_kinds, move_path
from fsd_decoding.models.state_cache import StateCache
from fsd_decoding.tensors import readable

if TYPE_CHECKING:
    from fsd_decoding.drafters.base import Frontier

PREFILL_CHUNK = 256  # positions per row and forward pass over prompts, which bounds the memory of activations


class ModelRunner:
    """A model with its KV cache. Positions that are fed again are overwritten, which is how a row is rolled back.

    Args:
        model: a loaded causal LM.
        rows: number of rows in the cache.
        slots: the most tokens per row.
        vocabulary: width that logits are cut to.
        layers: hidden states that its cache keeps, for a drafter that reads them; see `Forward`.
        rolled_back: the most tokens of a pass that may be rolled back; only a model with recurrent layers needs it.
        lean: run the model by `lean.py` where that gives the same logits, and not by transformers' modules.

    Raises:
        UsageError: the model cannot be run this way; see `check_model`.
    """

    def __init__(
        self,
        model: Any,
        rows: int,
        slots: int,
        vocabulary: int,
        lean: bool = True,
        layers: Sequence[int] = (),
        rolled_back: int = 2,
    ) -> None:
        check_model(model, slots)
        self.model, self.vocabulary, self.slots = model, vocabulary, slots
        self.device, self.has_states = model.device, has_states(model)
        if layers and self.has_states and not mask_kinds(model):  # whose `hidden_states` are what comes out of a layer
            raise UsageError(f"{model.config.model_type} tells no head what goes into its layers; take another draft")
        self.cache = SlotCache(rows, slots, self.device)
        if self.has_states:
            self.cache = StateCache(rows, slots, self.device, rolled_back + 1)
        self._layers = tuple(layers)
        context = context_length(model.config)
        self._last = None if context is None or context >= slots else context - 1
        self._masks = Masks(model, slots)
        self._forward = forward_of(model, slots if self._last is None else self._last + 1, lean)
        self._waiting: list[Part] = []  # what the next forward pass reads too

    @property
    def identity(self) -> Hashable:
        """Key of this runner's graphs: everything that changes its output, apart from tensor values.

        The reference is weak, because graphs may outlive the model's place in a decoder.
        """
        own = self._forward.identity, self.vocabulary, self._layers, self.cache.kept
        return weakref.ref(self.model), self.model.dtype, *own

    def logits(
        self,
        tokens: Tensor,
        positions: Tensor,
        kv_length: int,
        keep: int,
        rows: Tensor | None = None,
        branches: Branches | None = None,
    ) -> Tensor:
        """Runs the model on tokens at given positions.

        Args:
            tokens, positions: (B, Q).
            kv_length: number of slots to attend to: more than any row's largest slot, at most `slots`.
            keep: number of positions, from the end, to return logits of.
            rows: (B,) rows of the cache; None is all.
            branches: where the tokens are nodes of trees; on the device of `tokens`. None: each token's slot is its
                position, and it sees all slots up to its own.

        Returns:
            Logits (B, keep, V) on the device of `tokens`, in fp32 (fp64 for fp64 models), or in the model's dtype where
            kernels read them.
        """
        part = self._part(tokens, positions, kv_length, rows, branches)
        out = self._forward([*self._taken(), part], self.cache, keep, self._layers)[..., : self.vocabulary]
        return readable(out.to(tokens.device))

    def _part(
        self, tokens: Tensor, positions: Tensor, kv_length: int, rows: Tensor | None, branches: Branches | None = None
    ) -> Part:
        tokens, positions = tokens.to(self.device), positions.to(self.device)
        branches = None if branches is None else branches.to(self.device)
        slots = positions if branches is None else branches.slots
        encoded = positions if self._last is None else positions.clamp_max(self._last)
        rows = None if rows is None else rows.to(self.device)
        return Part(tokens, encoded, self._masks(positions, kv_length, branches), rows, slots, kv_length)

    def _taken(self) -> list[Part]:
        taken, self._waiting = self._waiting, []
        return taken

    @property
    def waits(self) -> bool:
        """Whether prompts are to be read with the next tokens."""
        return bool(self._waiting)

    def prefill(self, rows: Tensor, tokens: Tensor, until: int, start: int = 0, before: bool = False) -> None:
        """Fills the cache for positions start … until-1 of `rows`: the last with the next tokens, or by `catch_up`.

        A shorter row's slots beyond its end receive padding, and are written again before they are read; a model with
        recurrent layers reads rows of one length at a time. Position 0 is fed even if `until` is 0, so that the cache's
        memory is allocated before a graph first uses it.

        Args:
            rows: (R,) rows of the cache.
            tokens: (R, >= until), padded on the right.
            until: number of positions in the cache then.
            start: number of those that are in it already.
            before: whether the row may go on from the last of these positions, too, and not only from behind it.
        """
        for begin, stop in self._chunks(start, max(until, 1), before):
            positions = torch.arange(begin, stop, device=self.device).expand(len(rows), -1)
            waiting = sum(part.tokens.numel() for part in self._waiting)
            if waiting + positions.numel() > self.cache.rows * PREFILL_CHUNK:
                self.catch_up()
            self._waiting.append(self._part(tokens[:, begin:stop], positions, stop, rows))
            if not self._forward.joins:
                self.catch_up()

    def _chunks(self, start: int, until: int, before: bool) -> Iterator[tuple[int, int]]:
        """Yields begins and ends; the last is a token of its own where the state before it is needed, too."""
        last = until - 1 if before and self.has_states and until - start > 1 else until
        for begin in range(start, last, PREFILL_CHUNK):
            yield begin, min(begin + PREFILL_CHUNK, last)
        if last < until:
            yield last, until

    def catch_up(self) -> None:
        """Reads the prompts that wait, now."""
        if self._waiting:
            self._forward(self._taken(), self.cache, 1, self._layers)

    def enlarge(self, slots: int) -> None:
        """Gives each row so many slots, for nodes of trees: positions stay below the former number.

        Graphs hold for the former ones alone.
        """
        self.cache.enlarge(slots)
        self.slots, self._masks = slots, Masks(self.model, slots)

    def keep(self, rows: Sequence[int]) -> None:
        """Drops all rows except these, which are renumbered in this order."""
        self.catch_up()  # of the rows by their former numbers
        self.cache.keep(rows)

    def copy(self, sources: Sequence[int], rows: Sequence[int], count: int) -> None:
        """Gives `rows` the first `count` positions of the rows `sources`."""
        self.catch_up()
        self.cache.copy(sources, rows, count)

    def set_aside(self, row: int, count: int, place: int) -> None:
        """Keeps the state of recurrent layers after a row's first `count` tokens, the last it has read, in a place."""
        self.catch_up()
        self.cache.set_aside(row, count, place)

    def take(self, places: Sequence[int], rows: Sequence[int], counts: Sequence[int]) -> None:
        """Gives rows, which hold as many tokens, the states that were set aside in places."""
        self.cache.take(places, rows, counts)


def context_length(config: Any) -> int | None:
    """Returns the largest number of positions that a model of a configuration supports; None where that names none."""
    length = getattr(config.get_text_config(), "max_position_embeddings", None)
    return length if isinstance(length, int) and length > 0 else None


def vocabulary_size(model: Any) -> int:
    """Returns the width of the logits, whose tail may be padding."""
    head = model.get_output_embeddings()
    width: int = getattr(head, "out_features", None) or head.weight.shape[0]  # quantised weights may be packed
    return width


class ModelDrafter:
    """A `Drafter` whose q is a causal LM's next-token distribution."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner, self.has_states = runner, runner.has_states

    @property
    def identity(self) -> Hashable:
        return self._runner.identity

    def prefill(self, rows: Tensor, tokens: Tensor, until: int, start: int = 0) -> None:
        self._runner.prefill(rows, tokens, until, start, before=True)

    def catch_up(self) -> None:
        self._runner.catch_up()

    def copy(self, sources: Sequence[int], rows: Sequence[int], count: int) -> None:
        self._runner.copy(sources, rows, count)

    def set_aside(self, row: int, count: int, place: int) -> None:
        self._runner.set_aside(row, count, place)

    def take(self, places: Sequence[int], rows: Sequence[int], counts: Sequence[int]) -> None:
        self._runner.take(places, rows, counts)

    def keep(self, rows: Sequence[int]) -> None:
        self._runner.keep(rows)

    def logits(self, tokens: Tensor, lengths: Tensor, step: int, kv_length: int) -> Tensor:
        # Step 0 feeds the last two tokens, because after a draft accepted whole the model has not read its own last
        # token yet. It always feeds two, so that shapes do not depend on the previous round; a row of one token feeds
        # that token twice, which a recurrent layer cannot: see `Prompts.put`.
        last = lengths[:, None] + (step - 1)
        positions = torch.cat([(last - 1).clamp_min(0), last], 1) if step == 0 else last
        return self._runner.logits(tokens.gather(1, positions), positions, kv_length, keep=1)

    def expand(self, tokens: Tensor, lengths: Tensor, frontier: Frontier, kv_length: int) -> Tensor:
        drafted, scratch = frontier.tokens, frontier.seen.shape[2]
        depths = torch.arange(scratch, device=lengths.device)[None] // frontier.width + 1
        branches = Branches(lengths, lengths[:, None] + frontier.places, frontier.seen, depths)
        positions = (lengths[:, None] + (frontier.depth - 1)).expand_as(drafted)
        return self._runner.logits(drafted, positions, kv_length, keep=drafted.shape[1], branches=branches)

    def commit(self, lengths: Tensor, places: Tensor) -> None:
        move_path(self._runner.cache, lengths, places)
