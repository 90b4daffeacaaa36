"""A forward pass of common decoder-only models in few operations, over the weights that transformers has loaded.

Most of an eager forward pass of a small model is Python and small operations, of which there are fewer here. To support
another family, add it to `ARCHITECTURES`, where its layers differ from Llama's in what an `Architecture` says;
`lean_choice.py` compares the logits before a model is run this way.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from fsd_decoding.models.attention import attend, fold_mask
from fsd_decoding.models.kv_cache import SlotCache
from fsd_decoding.models.lean_weights import Linears, Packed


@dataclass(frozen=True)
class Architecture:
    """How the layers of a family differ from Llama's, in the names of their modules.

    Biases are those that the modules have, windows those that the configuration names.

    Args:
        query_norm, key_norm: norms of every head's queries and keys, before they are rotated.
    """

    query_norm: str | None = None
    key_norm: str | None = None


ARCHITECTURES: Mapping[str, Architecture] = {
    "LlamaForCausalLM": Architecture(),
    "MistralForCausalLM": Architecture(),
    "Qwen2ForCausalLM": Architecture(),
    "Qwen3ForCausalLM": Architecture("q_norm", "k_norm"),
}
"""By the name of a class of transformers."""


_made = count()  # tells apart what was made of a model before its modules were changed, and after


class LeanModel:
    """The weights of a model of `ARCHITECTURES`, ready for forward passes; the model itself is not kept alive.

    Args:
        model: a causal LM whose modules are those of its class.
        packed: keep copies of the weights in which layers with the same input are one; else the modules' own are used.
    """

    def __init__(self, model: Any, packed: bool) -> None:
        self.packed, self.number = packed, next(_made)
        architecture, decoder = ARCHITECTURES[type(model).__name__], model.model
        self.layers = [_Layer(layer, architecture, packed) for layer in decoder.layers]
        self.embeddings, self.rotary, self.norm = decoder.embed_tokens, decoder.rotary_emb, _norm(decoder.norm)
        self._head, self._logits = model.lm_head, Linears.of([model.lm_head], packed)
        weights = [self._logits, *(weights for layer in self.layers for weights in layer.weights)]
        self._copied = [linears for linears in weights if isinstance(linears, Packed)]
        self._copied_sums = self._sums() if self._copied else torch.empty(0)

    def refresh(self) -> None:
        """Copies packed weights anew, in place, where those of the modules have changed since, in whatever way."""
        if self._copied and not torch.equal(sums := self._sums(), self._copied_sums):
            for weights in self._copied:
                weights.refresh()
            self._copied_sums = sums

    @torch.inference_mode(False)
    @torch.no_grad()
    def _sums(self) -> Tensor:
        return torch.cat([part for weights in self._copied for part in weights.sums()])

    def logits(self, hidden: Tensor) -> Tensor:
        """Returns the logits of hidden states (B, n, H) before the last norm: (B, n, V)."""
        normed = self.norm(hidden)
        if self._head._forward_pre_hooks:  # collectors and predictors read the hidden states there
            hooked: Tensor = self._head(normed)
            return hooked
        return self._logits(normed.flatten(0, 1)).view(*hidden.shape[:2], -1)


class LeanForward:
    """Forward passes of a `LeanModel` over texts of up to `length` tokens."""

    def __init__(self, model: LeanModel, length: int) -> None:
        self._model = model
        weight = model.embeddings.weight
        cos, sin = model.rotary(weight, torch.arange(length, device=weight.device)[None])
        half = cos.shape[-1] // 2
        self._cos, self._sin = cos[0], torch.cat([-sin[0, :, :half], sin[0, :, half:]], 1)

    @property
    def identity(self) -> Hashable:
        return "lean", self._model.number

    def __call__(
        self,
        tokens: Tensor,
        positions: Tensor,
        masks: Mapping[str, Tensor],
        cache: SlotCache,
        keep: int,
        layers: Sequence[int] = (),
    ) -> Tensor:
        """See `forward.Forward`."""
        model, (rows, queries) = self._model, tokens.shape
        groups = model.layers[0].attention.groups
        step = _Step(
            rows, queries, self._cos[positions].unsqueeze(2), self._sin[positions].unsqueeze(2),
            {kind: fold_mask(mask, groups) for kind, mask in masks.items()}, cache,
        )  # fmt: skip
        hidden = functional.embedding(tokens.flatten(), model.embeddings.weight)  # (B·Q, H)
        states = {}
        for number, layer in enumerate(model.layers):
            if number in layers:
                states[number] = hidden.view(rows, queries, -1).clone()  # layers may write in place
            hidden = layer(hidden, step, number)
        hidden = hidden.view(rows, queries, -1)
        if layers:
            states[-1] = model.norm(hidden) if -1 in layers else hidden
            cache.keep_states([states[layer] for layer in layers])
        return model.logits(hidden[:, -keep:])


class _Step(NamedTuple):
    """What the layers of one forward pass share."""

    rows: int  # B
    queries: int  # Q
    cos: Tensor  # (B, Q, 1, D)
    sin: Tensor  # (B, Q, 1, D), negated in the first half, for `roll`
    masks: Mapping[str, Tensor]  # folded
    cache: SlotCache


class _Layer:
    """A decoder layer with norms before attention and before the gated MLP."""

    def __init__(self, layer: Any, architecture: Architecture, packed: bool) -> None:
        self.attention = _Attention(layer.self_attn, architecture, packed)
        self._norm, self._second_norm = _norm(layer.input_layernorm), _norm(layer.post_attention_layernorm)
        mlp = layer.mlp
        self._activation = mlp.act_fn.forward  # hooks, which a module's call looks for, keep a model from being lean
        self._gate_up = Linears.of([mlp.gate_proj, mlp.up_proj], packed)
        self._down = Linears.of([mlp.down_proj], packed)

    @property
    def weights(self) -> Sequence[Linears]:
        return self.attention.projections, self.attention.output, self._gate_up, self._down

    def __call__(self, hidden: Tensor, step: _Step, number: int) -> Tensor:
        """(B·Q, H) -> (B·Q, H)."""
        hidden = self.attention(hidden, self._norm(hidden), step, number)
        gate, up = self._gate_up(self._second_norm(hidden)).chunk(2, -1)
        return self._down.plus(hidden, self._activation(gate).mul_(up))


class _Attention:
    """Grouped-query attention with rotary positions."""

    def __init__(self, attention: Any, architecture: Architecture, packed: bool) -> None:
        size = attention.head_dim
        self._size, self._scaling = size, attention.scaling
        self.groups = attention.num_key_value_groups
        self._heads, self._key_heads = attention.config.num_attention_heads, attention.config.num_key_value_heads
        self._kind: str | None = getattr(attention, "layer_type", None)
        names = architecture.query_norm, architecture.key_norm
        self._norms = [_norm(getattr(attention, name)) for name in names if name is not None]
        self.projections = Linears.of([attention.q_proj, attention.k_proj, attention.v_proj], packed)
        self.output = Linears.of([attention.o_proj], packed)

    def __call__(self, residual: Tensor, hidden: Tensor, step: _Step, number: int) -> Tensor:
        """(B·Q, H), (B·Q, H) -> (B·Q, H)."""
        heads, rotated = self._heads, self._heads + self._key_heads
        states = self.projections(hidden).view(step.rows, step.queries, -1, self._size)  # (B, Q, heads, D)
        if self._norms:
            query_norm, key_norm = self._norms
            parts = query_norm(states[:, :, :heads]), key_norm(states[:, :, heads:rotated]), states[:, :, rotated:]
            states = torch.cat(parts, 2)
        self._rotate(states[:, :, :rotated], step)
        keys, values = step.cache.store(states[:, :, heads:], number).chunk(2, 1)
        mask = step.masks[self._kind] if self._kind is not None else next(iter(step.masks.values()))
        attended = attend(states[:, :, :heads].transpose(1, 2), keys, values, mask, self._scaling)
        return self.output.plus(residual, attended.transpose(1, 2).reshape(step.rows * step.queries, -1))

    def _rotate(self, states: Tensor, step: _Step) -> None:
        """Rotates queries and keys (B, Q, heads, D) in place."""
        turned = states.roll(self._size // 2, -1)
        states.mul_(step.cos).addcmul_(turned, step.sin)


def _norm(module: Any) -> Callable[[Tensor], Tensor]:
    """Returns a root-mean-square norm (…, n) -> (…, n).

    Args:
        module: that of transformers.
    """
    weight = module.weight
    if weight.dtype == torch.float64:
        forward: Callable[[Tensor], Tensor] = module.forward  # which computes it in fp32
        return forward
    if weight.dtype == torch.float32 and weight.device.type == "cpu":
        return _ProductNorm(weight, module.variance_epsilon)
    return partial(functional.rms_norm, normalized_shape=weight.shape, weight=weight, eps=module.variance_epsilon)


class _ProductNorm:
    """The norm where PyTorch's own is nine operations: a product with a column of 1/n is a mean in one."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self._weight = weight
        self._eps = weight.new_tensor(eps)
        self._mean = weight.new_full((len(weight), 1), 1 / len(weight))

    def __call__(self, states: Tensor) -> Tensor:
        if states.dim() > 2:
            return self(states.flatten(0, -2)).view(states.shape)
        return (states * torch.addmm(self._eps, states.square(), self._mean).rsqrt_()).mul_(self._weight)
