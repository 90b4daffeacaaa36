"""Forward passes by transformers' modules: which models can be run on a `SlotCache`, and how they attend to it.

A row is rolled back by feeding its positions again, in one batch with rows of other lengths. That is correct where a
token's keys and values depend only on the tokens up to it and its position, and where the model takes positions and
masks from its caller. Other models are refused, judged by their type and configuration alone; nothing is run.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol
from weakref import WeakSet

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from fsd_common.errors import UsageError
from fsd_decoding.models.scans import prepare, recording, tells_states
from fsd_decoding.models.slot_cache import CONVOLUTION, FULL, LINEAR, SlotCache, attend, fold_mask, mask_kinds
from fsd_decoding.models.state_cache import StateCache

_KNOWN = sorted({"default", *ROPE_INIT_FUNCTIONS})


def unknown_rope_type(values: Mapping[str, Any]) -> str | None:
    """Returns what is wrong with the rope_type that a configuration names, and the way out; None: nothing is.

    Args:
        values: entries of config.json. Those of the rotary encoding may differ by kind of layer.
    """
    for entry in ("rope_parameters", "rope_scaling"):
        if not isinstance(rope := values.get(entry), Mapping):
            continue
        for part in [part for part in rope.values() if isinstance(part, Mapping)] or [rope]:
            kind = part.get("rope_type", part.get("type", "default"))
            if kind not in _KNOWN:
                return (
                    f"{entry} has rope_type {kind!r:.40} in its config.json; it must be one of {', '.join(_KNOWN)}: "
                    "correct it, or install a version of transformers that knows it"
                )
    return None


CACHE_ARGUMENTS = ("cache", "past_key_values")  # the current name, and that of transformers before 5.24

_checked: WeakSet[Any] = WeakSet()  # models that passed, because going through all modules takes milliseconds


def check_model(model: Any, slots: int) -> None:
    """Checks that a model can decode rows of up to `slots` tokens, of different lengths and with rollback.

    Raises:
        UsageError: it cannot; the message says why, and what to use instead.
    """
    for obstacle in chain(() if model in _checked else _obstacles(model), _changeable_obstacles(model, slots)):
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
    if has_states(model) and model.config.get_text_config().model_type not in RECURRENT:
        yield f"keeps a state that cannot be rolled back; of models with one {', '.join(sorted(RECURRENT))} are known"
    elif has_states(model) and not tells_states(model):
        yield "runs recurrent layers by code that is not that of transformers 5.24 or later; install that"
    required = [cache_argument(model), "attention_mask", "logits_to_keep"]
    if mask_kinds(model):
        required.append("position_ids")
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


RECURRENT = frozenset(
    ("bamba", "falcon_h1", "falcon_mamba", "granitemoehybrid", "jamba", "kimi_linear", "lfm2", "lfm2_moe", "mamba",
     "mamba2", "nemotron_h", "olmo_hybrid", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next")
)  # fmt: skip
"""Types of models whose recurrent layers ask the cache for all that they keep."""


def has_states(model: Any) -> bool:
    """Returns whether any layer keeps a state in place of keys and values."""
    kinds = set(getattr(model.config.get_text_config(), "layer_types", None) or [])
    recurrent = any(kind in (LINEAR, CONVOLUTION) or kind.startswith("hybrid") for kind in kinds)
    return recurrent or (model._is_stateful and kinds != {FULL})  # classes of hybrids say so even if no layer is


def _changeable_obstacles(model: Any, slots: int) -> Iterator[str]:
    """Reasons why the model cannot run as it is now, or in rows of so many slots."""
    if model.training:
        yield "is in training mode, in which dropout randomises its outputs; call .eval() on it"
    config = model.config.get_text_config()
    rope = getattr(config, "rope_parameters", None) or {}
    by_layer = [entry for entry in rope.values() if isinstance(entry, dict)] or [rope]
    unscaled = [r["original_max_position_embeddings"] for r in by_layer if r.get("rope_type") == "longrope"]
    limits = {
        "rescales all positions in texts of more than {} tokens (longrope)": min(unscaled, default=None),
        # The ranking is of values alone, without positions: equal tokens tie in the first layer, and rounding decides.
        "attends to its {} best ranked tokens in longer texts, where equal tokens tie": (
            config.keep_window_size if config.model_type == "doge" else None
        ),
    }
    for what, longest in limits.items():
        if longest is not None and slots > longest:
            yield (
                f"{what.format(longest)}, and {slots} are requested; "
                f"keep prompt, new tokens and draft within {longest} tokens"
            )


NAME = "fsd_grouped"


def grouped_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Computes transformers' `sdpa` attention with the G queries that share a key head folded into the query axis.

    With a mask, transformers repeats keys and values G times instead, which copies the cache in every layer. Repeating
    the mask is far cheaper. Some models (Doge) have a mask per head, which is folded like the queries.

    Args:
        module, dropout, kwargs: as in transformers' attention interface.
        query: (B, G·K, Q, D).
        key, value: (B, K, S, D).
        attention_mask: (B, 1, Q, S) or (B, G·K, Q, S) additive.
        scaling: factor of the scores; None is 1/√D.

    Returns:
        (B, Q, G·K, D), and None in place of attention weights.
    """
    if attention_mask is None or attention_mask.dtype == torch.bool or dropout:
        # Not called by `ModelRunner`, but by another thread that uses the model meanwhile.
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **kwargs)
    mask = fold_mask(attention_mask, query.shape[1] // key.shape[1])
    return attend(query, key, value, mask, scaling).transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, grouped_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)  # for calls without a mask of their own


def attention_kind(model: Any) -> str:
    """Returns the kind of attention that a model was loaded with: "sdpa", which is replaced here, "eager", …"""
    kind: str = model.config.get_text_config()._attn_implementation
    return "sdpa" if kind == NAME else kind  # another thread is inside `use_grouped_attention`


@contextmanager
def use_grouped_attention(config: Any) -> Iterator[None]:
    """Inside, a model of this config that was loaded with `sdpa` uses `grouped_attention`.

    Enter it for single forward passes only, because the model belongs to the caller. Other threads may use the model or
    enter this context meanwhile.
    """
    config._attn_implementation_internal = NAME
    try:
        yield
    finally:
        config._attn_implementation_internal = "sdpa"


@dataclass(frozen=True)
class Part:
    """Tokens of a forward pass, all at their places in some rows of a cache.

    Args:
        tokens, positions: (B, Q).
        masks: by kind of attention, additive (B, 1, Q, S) over the slots that the cache returns.
        rows: (B,) rows of the cache; None is all.
        slots: (B, Q) where the tokens' keys and values go.
        kv_length: number of slots to attend to.
    """

    tokens: Tensor
    positions: Tensor
    masks: Mapping[str, Tensor]
    rows: Tensor | None
    slots: Tensor
    kv_length: int

    def aim(self, cache: SlotCache) -> None:
        """Sets what this part of a forward pass writes and reads."""
        cache.aim(self.rows, self.slots, self.kv_length)


class Forward(Protocol):
    """Runs a model on tokens at given positions."""

    @property
    def identity(self) -> Hashable:
        """Key of this forward pass in graphs: what changes its operations, apart from the model."""

    @property
    def joins(self) -> bool:
        """Whether several parts are one pass; else each is a pass of its own, which hooks on the model see."""

    def __call__(self, parts: Sequence[Part], cache: SlotCache, keep: int, layers: Sequence[int] = ()) -> Tensor:
        """Returns logits (B, keep, V) of the last part in the model's dtype.

        Args:
            parts: what is read, in this order: a part sees what those before it have written.
            cache: where keys and values are.
            keep: number of positions, from the end, to return logits of.
            layers: the hidden states that the cache keeps of all tokens, see `SlotCache.keep_states`, as indices into
                transformers' `hidden_states`: what goes into that layer, -1 being what goes into the output layer.
        """


class ModuleForward:
    """The forward pass of transformers' own modules.

    Raises:
        UsageError: the model's attention can take no mask from us.
    """

    def __init__(self, model: Any) -> None:
        self._model, self._config = model, model.config.get_text_config()
        kind = attention_kind(model)
        if kind not in ("sdpa", "eager"):
            raise UsageError(f"the model uses attention {kind!r}; load it with attn_implementation='sdpa' or 'eager'")
        self._grouped = kind == "sdpa"
        self._cache_argument = cache_argument(model)
        self._takes_positions = "position_ids" in _arguments(model)
        if has_states(model):
            prepare(model)

    @property
    def identity(self) -> Hashable:
        return self._grouped

    joins = False

    def __call__(self, parts: Sequence[Part], cache: SlotCache, keep: int, layers: Sequence[int] = ()) -> Tensor:
        """See `Forward`."""
        for part in parts[:-1]:
            self._run(part, cache, 1, layers)
        return self._run(parts[-1], cache, keep, layers)

    def _run(self, part: Part, cache: SlotCache, keep: int, layers: Sequence[int]) -> Tensor:
        """transformers takes a dict of masks where layers differ in kind, and passes 4-D ones on."""
        part.aim(cache)
        states = cache if isinstance(cache, StateCache) else None
        given = {self._cache_argument: cache, "attention_mask": _masks(part.masks, states is not None)}
        if self._takes_positions:
            given["position_ids"] = part.positions
        with (
            use_grouped_attention(self._config) if self._grouped else nullcontext(),
            nullcontext() if states is None else recording(states),
        ):
            out = self._model(
                input_ids=part.tokens,
                use_cache=True,
                logits_to_keep=keep,
                **given,
                **({"output_hidden_states": True} if layers else {}),
            )
        cache.finish()
        if layers:
            cache.keep_states([out.hidden_states[layer] for layer in layers])
        logits: Tensor = out.logits
        return logits


def _masks(masks: Mapping[str, Tensor], with_states: bool) -> Any:
    """As a model takes them: a dict where layers differ in kind. Recurrent layers need none, as nothing is padding."""
    if with_states and masks:
        return {**masks, LINEAR: None, CONVOLUTION: None}
    return dict(masks) if len(masks) > 1 else next(iter(masks.values()), None)
