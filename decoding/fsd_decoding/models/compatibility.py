"""Check that a model can run on a `SlotCache`.

A row is rolled back by feeding its positions again, in one batch with rows of other lengths. That is correct where a
token's keys and values depend only on the tokens up to it and its position, and where the model takes positions and
masks from its caller. Other models are refused, judged by their type and configuration alone; nothing is run.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator
from itertools import chain
from typing import Any
from weakref import WeakSet

import torch

from fsd_common.errors import UsageError

CACHE_ARGUMENTS = ("cache", "past_key_values")  # the current name, and that of transformers before 5.24

_checked: WeakSet[Any] = WeakSet()  # models that passed, because going through all modules takes milliseconds


def check_model(model: Any, slots: int) -> None:
    """Checks that a model can decode rows of up to `slots` tokens, of different lengths and with rollback.

    Raises:
        UsageError: it cannot; the message says why, and what to use instead.
    """
    changeable = chain(_in_training(model), _too_long(model, slots))
    for obstacle in changeable if model in _checked else chain(_obstacles(model), changeable):
        raise UsageError(f"{model.config.model_type} {obstacle}")
    _checked.add(model)


def cache_argument(model: Any) -> str:
    """Returns the name under which a model's forward pass takes its KV cache, if it takes one."""
    current, former = CACHE_ARGUMENTS
    return current if current in _arguments(model) else former


def _arguments(model: Any) -> Collection[str]:
    """Names that a model's forward pass takes."""
    forward = getattr(model, "_orig_mod", model).forward  # torch.compile hides a model's signature
    return inspect.signature(forward).parameters.keys()


def _obstacles(model: Any) -> Iterator[str]:
    """Reasons why the model can never run on a `SlotCache`, as the rest of a sentence about it."""
    if model.config.is_encoder_decoder or getattr(model.config, "add_cross_attention", False):
        yield "attends to an encoder; use a decoder-only model"
    if _keeps_a_state(model):
        yield "keeps a state that cannot be rolled back; use a model whose layers are full or sliding attention"
    required = ("position_ids", cache_argument(model), "attention_mask", "logits_to_keep")
    if missing := [name for name in required if name not in _arguments(model)]:
        yield f"takes no {', '.join(missing)}, so rows of different lengths cannot share a batch; use another model"
    config = model.config.get_text_config()
    if getattr(config, "alibi", False):
        yield "uses ALiBi, whose positions it derives from a padding mask; use a model with position_ids"
    if any(getattr(module, "is_causal", None) is False for module in model.get_decoder().modules()):
        yield "attends to later tokens as well; use a causal model (load an encoder with is_decoder=True)"
    if "token_type_ids" in _arguments(model) and not getattr(config, "is_decoder", True):
        yield "is an encoder as loaded; load it with is_decoder=True, or use a decoder-only model"
    if any(buffer.dtype == torch.bool and buffer.dim() == 4 for buffer in model.buffers()):
        yield "masks by a table of its own, which assumes rows of equal length; use another model"
    if config.model_type == "doge" and config.is_moe:
        yield "chooses experts by all tokens of a forward pass together, later ones too; use one without is_moe"
    if any("position" in name and getattr(m, "padding_idx", None) is not None for name, m in model.named_modules()):
        yield "numbers positions from its padding token's id; use a model that numbers them from 0"


def _keeps_a_state(model: Any) -> bool:
    """Whether a layer is recurrent; hybrid classes declare themselves stateful even if all layers are attention."""
    kinds = getattr(model.config.get_text_config(), "layer_types", None) or []
    return model._is_stateful and set(kinds) != {"full_attention"}


def _in_training(model: Any) -> Iterator[str]:
    if model.training:
        yield "is in training mode, in which dropout randomises its outputs; call .eval() on it"


def _too_long(model: Any, slots: int) -> Iterator[str]:
    config = model.config.get_text_config()
    limits = {
        "rescales all positions in texts of more than {} tokens (longrope)": _unscaled_length(config),
        # The ranking is of values alone, without positions: equal tokens tie in the first layer, and rounding decides.
        "attends to its {} best ranked tokens in longer texts, where equal tokens tie": _unranked_length(config),
    }
    for what, longest in limits.items():
        if longest is not None and slots > longest:
            yield (
                f"{what.format(longest)}, and {slots} are requested; "
                f"keep prompt, new tokens and draft within {longest} tokens"
            )


def _unranked_length(config: Any) -> int | None:
    """Length up to which Doge's dynamic mask keeps every token; None for all other models."""
    return config.keep_window_size if config.model_type == "doge" else None


def _unscaled_length(config: Any) -> int | None:
    """Length up to which the encoding of positions does not depend on the length of the text; None for any length."""
    rope = getattr(config, "rope_parameters", None) or {}
    by_layer = [entry for entry in rope.values() if isinstance(entry, dict)] or [rope]
    lengths = [r["original_max_position_embeddings"] for r in by_layer if r.get("rope_type") == "longrope"]
    return min(lengths, default=None)
