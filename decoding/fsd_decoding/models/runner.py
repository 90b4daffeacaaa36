"""Feeds one Hugging Face causal LM with rows of different lengths.

Knows positions, masks (full and sliding window) and vocabulary width. Knows nothing of drafting,
acceptance or sampling.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from fsd_decoding.errors import UsageError
from fsd_decoding.models.attention import NAME, grouped
from fsd_decoding.models.compatibility import check_model
from fsd_decoding.models.kv_cache import SlotCache

PREFILL_CHUNK = 256  # positions a forward of long prompts: bounds activations


class ModelRunner:
    """One model with its cache. Positions fed again overwrite, which is how a row is rolled back."""

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
        self._seen, self._hidden = torch.tensor([0.0, torch.finfo(model.dtype).min]).to(self.device, model.dtype)

    @property
    def identity(self) -> Hashable:
        """What a graph of this runner is bound to."""
        return self.model, self.model.dtype, self._grouped, self.vocabulary

    def logits(self, tokens: Tensor, positions: Tensor, reach: int, keep: int, rows: Tensor | None = None) -> Tensor:
        """Feeds `tokens` at `positions`, both (B, Q), and returns logits of the last `keep`: (B, keep, V).

        `reach` is more than the largest position any row attends to, at most `slots`. The logits are fp32, or
        fp64 for fp64 models, and come to where `tokens` are, wherever the model is.
        """
        home = tokens.device
        tokens, positions = tokens.to(self.device), positions.to(self.device)
        self.cache.aim(None if rows is None else rows.to(self.device), positions, reach)
        clamped = positions if self._last is None else positions.clamp_max(self._last)
        with grouped(self._config) if self._grouped else nullcontext():
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
        """Caches positions 0 … until-1 of `rows`; `tokens` is (B, >= until), padded on the right.

        A shorter row gets rubbish beyond its end, in slots it writes again before it reads them. The first
        position is fed in any case, so that the cache's memory is there when a graph first asks for it.
        """
        for start in range(0, max(until, 1), PREFILL_CHUNK):
            stop = min(start + PREFILL_CHUNK, max(until, 1))
            positions = torch.arange(start, stop, device=self.device).expand(len(rows), -1)
            self.logits(tokens[:, start:stop], positions, stop, keep=1, rows=rows)

    def _mask(self, positions: Tensor, reach: int) -> Any:
        """Additive 4-D masks, which transformers hands to attention unchanged; a dict where layers differ."""
        slot, own = self._slots[:reach], positions[:, None, :, None]
        masks = {}
        for kind, window in self._windows.items():
            hidden = slot > own if window is None else (slot > own) | (slot <= own - window)  # (B, 1, Q, reach)
            masks[kind] = torch.where(hidden, self._hidden, self._seen)
        return masks if len(masks) > 1 else next(iter(masks.values()))


def context_length(model: Any) -> int | None:
    """Positions the model was built for, or None where its configuration names no limit."""
    length = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return length if isinstance(length, int) and length > 0 else None


def vocabulary_size(model: Any) -> int:
    """Width of the logits, the tail of which may be padding."""
    head = model.get_output_embeddings()
    width: int = getattr(head, "out_features", None) or head.weight.shape[0]  # quantised weights may be packed
    return width


def _attention(model: Any) -> str:
    """The model's own attention: "sdpa", which `grouped_attention` stands in for, or "eager"."""
    kind: str = model.config.get_text_config()._attn_implementation
    kind = "sdpa" if kind == NAME else kind  # another thread is in a forward
    if kind not in ("sdpa", "eager"):
        raise UsageError(f"the model uses attention {kind!r}; load it with attn_implementation='sdpa' or 'eager'")
    return kind


def _mask_kinds(model: Any) -> dict[str, int | None]:
    """Attention kinds of the layers -> window (None: full attention)."""
    config = model.config.get_text_config()
    window = getattr(config, "sliding_window", None)
    kinds = set(getattr(config, "layer_types", None) or [])
    if not kinds:
        kinds = {"sliding_attention" if window and _makes_windows(model) else "full_attention"}
    known = {"full_attention", "sliding_attention"}
    if not kinds <= known:
        odd = ", ".join(sorted(kinds - known))
        raise UsageError(
            f"{config.model_type} has layers of kind {odd}, whose cache cannot be rolled back; "
            "use a model with full or sliding attention"
        )
    return {kind: window if kind == "sliding_attention" else None for kind in sorted(kinds)}


def _makes_windows(model: Any) -> bool:
    """Whether the model's own code knows windows: a configuration may name one that no layer has (Moshi)."""
    return hasattr(sys.modules[type(model.get_decoder()).__module__], "create_sliding_window_causal_mask")
