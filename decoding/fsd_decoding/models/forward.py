"""Forward passes of a model over rows of different lengths: those of transformers' modules, or a lean one."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Protocol

from torch import Tensor

from fsd_common.errors import UsageError
from fsd_decoding.models.attention import attention_kind, use_grouped_attention
from fsd_decoding.models.compatibility import cache_argument
from fsd_decoding.models.kv_cache import SlotCache


class Forward(Protocol):
    """Runs a model on tokens at given positions."""

    @property
    def identity(self) -> Hashable:
        """Key of this forward pass in graphs: what changes its operations, apart from the model."""

    def __call__(
        self,
        tokens: Tensor,
        positions: Tensor,
        masks: Mapping[str, Tensor],
        cache: SlotCache,
        keep: int,
        layers: Sequence[int] = (),
    ) -> Tensor:
        """Returns logits (B, keep, V) in the model's dtype.

        Args:
            tokens, positions: (B, Q).
            masks: by kind of attention, additive (B, 1, Q, S) over the slots that the cache returns.
            cache: already aimed at the rows and slots of this pass.
            keep: number of positions, from the end, to return logits of.
            layers: the hidden states that the cache keeps of these tokens, see `SlotCache.keep_states`, as indices into
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

    @property
    def identity(self) -> Hashable:
        return self._grouped

    def __call__(
        self,
        tokens: Tensor,
        positions: Tensor,
        masks: Mapping[str, Tensor],
        cache: SlotCache,
        keep: int,
        layers: Sequence[int] = (),
    ) -> Tensor:
        """See `Forward`; transformers takes a dict of masks where layers differ in kind, and passes 4-D ones on."""
        with use_grouped_attention(self._config) if self._grouped else nullcontext():
            out = self._model(
                input_ids=tokens,
                position_ids=positions,
                attention_mask=dict(masks) if len(masks) > 1 else next(iter(masks.values())),
                use_cache=True,
                logits_to_keep=keep,
                **{self._cache_argument: cache},
                **({"output_hidden_states": True} if layers else {}),
            )
        if layers:
            cache.keep_states([out.hidden_states[layer] for layer in layers])
        logits: Tensor = out.logits
        return logits
