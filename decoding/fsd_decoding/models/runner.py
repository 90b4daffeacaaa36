"""Forward passes of a Hugging Face causal LM over rows of different lengths."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Hashable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from fsd_decoding.errors import UsageError
from fsd_decoding.models.attention import NAME, use_grouped_attention
from fsd_decoding.models.compatibility import check_model
from fsd_decoding.models.kv_cache import SlotCache

PREFILL_CHUNK = 256  # positions per forward pass over long prompts, which bounds the memory of activations


class ModelRunner:
    """A model with its KV cache. Positions that are fed again are overwritten, which is how a row is rolled back.

    Args:
        model: a loaded causal LM.
        rows: number of rows in the cache.
        slots: the most tokens per row.
        vocabulary: width that logits are cut to.

    Raises:
        UsageError: the model cannot be run this way; see `check_model`.
    """

    def __init__(self, model: Any, rows: int, slots: int, vocabulary: int) -> None:
        check_model(model, slots)
        self.model, self.vocabulary = model, vocabulary
        self.device = model.device
        self.cache = SlotCache(rows, slots, self.device)
        context = context_length(model)
        self._last = None if context is None or context >= slots else context - 1
        self._config = model.config.get_text_config()
        self._windows = _mask_kinds(model)
        self._grouped = _attention(model) == "sdpa"
        self.slots = slots
        self._slots = torch.arange(slots, device=self.device)
        self._visible, self._hidden = torch.tensor([0.0, torch.finfo(model.dtype).min]).to(self.device, model.dtype)

    @property
    def identity(self) -> Hashable:
        """Key of this runner's graphs: everything that changes its output, apart from tensor values.

        The reference is weak, because graphs may outlive the model's place in a decoder.
        """
        return weakref.ref(self.model), self.model.dtype, self._grouped, self.vocabulary

    def logits(self, tokens: Tensor, positions: Tensor, reach: int, keep: int, rows: Tensor | None = None) -> Tensor:
        """Runs the model on tokens at given positions.

        Args:
            tokens, positions: (B, Q).
            reach: number of slots to attend to: more than any row's largest position, at most `slots`.
            keep: number of positions, from the end, to return logits of.
            rows: (B,) rows of the cache; None is all.

        Returns:
            Logits (B, keep, V) in fp32 (fp64 for fp64 models), on the device of `tokens`.
        """
        home = tokens.device
        tokens, positions = tokens.to(self.device), positions.to(self.device)
        self.cache.aim(None if rows is None else rows.to(self.device), positions, reach)
        clamped = positions if self._last is None else positions.clamp_max(self._last)
        with use_grouped_attention(self._config) if self._grouped else nullcontext():
            out = self.model(
                input_ids=tokens,
                position_ids=clamped,
                attention_mask=self._mask(positions, reach),
                past_key_values=self.cache,
                use_cache=True,
                logits_to_keep=keep,
            ).logits[..., : self.vocabulary]
        logits: Tensor = (out if out.dtype == torch.float64 else out.float()).to(home)
        return logits

    def prefill(self, rows: Tensor, tokens: Tensor, until: int) -> None:
        """Fills the cache for positions 0 … until-1 of `rows`.

        A shorter row's slots beyond its end receive padding, and are written again before they are read. Position 0 is
        fed even if `until` is 0, so that the cache's memory is allocated before a graph first uses it.

        Args:
            rows: (B,) rows of the cache.
            tokens: (B, >= until), padded on the right.
            until: number of positions to fill.
        """
        for start in range(0, max(until, 1), PREFILL_CHUNK):
            stop = min(start + PREFILL_CHUNK, max(until, 1))
            positions = torch.arange(start, stop, device=self.device).expand(len(rows), -1)
            self.logits(tokens[:, start:stop], positions, stop, keep=1, rows=rows)

    def _mask(self, positions: Tensor, reach: int) -> Any:
        """Additive 4-D masks, which transformers passes to attention unchanged; a dict where layers differ."""
        slot, query = self._slots[:reach], positions[:, None, :, None]
        masks = {}
        for kind, window in self._windows.items():
            hidden = slot > query if window is None else (slot > query) | (slot <= query - window)  # (B, 1, Q, reach)
            masks[kind] = torch.where(hidden, self._hidden, self._visible)
        return masks if len(masks) > 1 else next(iter(masks.values()))


def context_length(model: Any) -> int | None:
    """Returns the largest number of positions the model supports; None where its configuration names no limit."""
    length = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return length if isinstance(length, int) and length > 0 else None


def vocabulary_size(model: Any) -> int:
    """Returns the width of the logits, whose tail may be padding."""
    head = model.get_output_embeddings()
    width: int = getattr(head, "out_features", None) or head.weight.shape[0]  # quantised weights may be packed
    return width


def _attention(model: Any) -> str:
    """The attention the model was loaded with: "sdpa", which `grouped_attention` replaces, or "eager"."""
    kind: str = model.config.get_text_config()._attn_implementation
    kind = "sdpa" if kind == NAME else kind  # another thread is inside `use_grouped_attention`
    if kind not in ("sdpa", "eager"):
        raise UsageError(f"the model uses attention {kind!r}; load it with attn_implementation='sdpa' or 'eager'")
    return kind


def _mask_kinds(model: Any) -> dict[str, int | None]:
    """Maps each kind of attention among the layers to its window; None is full attention.

    Raises:
        UsageError: a layer is neither full nor sliding attention.
    """
    config = model.config.get_text_config()
    window = getattr(config, "sliding_window", None)
    kinds = set(getattr(config, "layer_types", None) or [])
    if not kinds:
        kinds = {"sliding_attention" if window and _makes_windows(model) else "full_attention"}
    known = {"full_attention", "sliding_attention"}
    if not kinds <= known:
        unsupported = ", ".join(sorted(kinds - known))
        raise UsageError(
            f"{config.model_type} has layers of kind {unsupported}, whose cache cannot be rolled back; "
            "use a model with full or sliding attention"
        )
    return {kind: window if kind == "sliding_attention" else None for kind in sorted(kinds)}


def _makes_windows(model: Any) -> bool:
    """Whether the model's code implements windows; a configuration may name one that no layer uses (Moshi)."""
    return hasattr(sys.modules[type(model.get_decoder()).__module__], "create_sliding_window_causal_mask")
