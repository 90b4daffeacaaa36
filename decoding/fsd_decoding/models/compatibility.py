"""Which models a `SlotCache` serves. Knows what transformers declares of a model, and runs nothing.

A row is rolled back by feeding positions again, next to rows of other lengths. That is right where a token's
keys and values depend on nothing but the tokens before it and its position, and where the model takes
positions and masks from its caller. Any other model is refused by its type.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from itertools import chain
from typing import Any
from weakref import WeakSet

import torch

from fsd_decoding.errors import UsageError

_ASKED = ("position_ids", "past_key_values", "attention_mask", "logits_to_keep")


_checked: WeakSet[Any] = WeakSet()  # models without an obstacle: looking through all modules takes milliseconds


def check_model(model: Any, slots: int) -> None:
    """Raises UsageError for a model whose rows of up to `slots` tokens cannot be fed and rolled back one by one."""
    passing = chain(_in_training(model), _too_long(model, slots))
    for obstacle in passing if model in _checked else chain(_obstacles(model), passing):
        raise UsageError(f"{model.config.model_type} {obstacle}")
    _checked.add(model)


def _obstacles(model: Any) -> Iterator[str]:
    if model.config.is_encoder_decoder or getattr(model.config, "add_cross_attention", False):
        yield "attends to an encoder; use a decoder-only model"
    if model._is_stateful:
        yield "keeps a state that cannot be rolled back; use a model whose layers are full or sliding attention"
    forward = getattr(model, "_orig_mod", model).forward  # torch.compile hides what a model takes
    if missing := [name for name in _ASKED if name not in inspect.signature(forward).parameters]:
        yield f"takes no {', '.join(missing)}, so rows of different lengths cannot share a batch; use another model"
    config = model.config.get_text_config()
    if getattr(config, "alibi", False):
        yield "biases attention by ALiBi, which it takes from a padding mask; use a model with position_ids"
    if any(getattr(module, "is_causal", None) is False for module in model.get_decoder().modules()):
        yield "attends to later tokens too; use a causal model (encoders: load with is_decoder=True)"
    if "token_type_ids" in inspect.signature(forward).parameters and not getattr(config, "is_decoder", True):
        yield "is an encoder as it was loaded; load it with is_decoder=True, or use a decoder-only model"
    if any(buffer.dtype == torch.bool and buffer.dim() == 4 for buffer in model.buffers()):
        yield "masks by its own table, which takes all rows to be of one length; use another model"
    if any("position" in name and getattr(m, "padding_idx", None) is not None for name, m in model.named_modules()):
        yield "counts positions from its padding token's id; use a model that counts from 0"


def _in_training(model: Any) -> Iterator[str]:
    if model.training:
        yield "is in training mode, where dropout makes every call another; call .eval() on it"


def _too_long(model: Any, slots: int) -> Iterator[str]:
    longest = _unscaled_length(model.config.get_text_config())
    if longest is not None and slots > longest:
        yield (
            f"computes all positions anew in texts beyond {longest} tokens (longrope), and {slots} are asked for; "
            f"keep prompt, new tokens and draft within {longest}"
        )


def _unscaled_length(config: Any) -> int | None:
    """Tokens up to which positions mean the same whatever the length of the text; None: always."""
    rope = getattr(config, "rope_parameters", None) or {}
    by_layer = [entry for entry in rope.values() if isinstance(entry, dict)] or [rope]
    lengths = [r["original_max_position_embeddings"] for r in by_layer if r.get("rope_type") == "longrope"]
    return min(lengths, default=None)
