"""EAGLE heads as modules: fusion of token and feature, one decoder layer, and logits over the target's vocabulary."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb

from fsd_decoding.eagle.drafter import EagleDrafter
from fsd_decoding.eagle.target_output import TargetOutput
from fsd_decoding.models.attention import attend, fold_mask
from fsd_decoding.models.known_digests import known_weights_digest

_COMPUTED_WITH = (
    "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_act", "rms_norm_eps", "rope_parameters",
    "max_position_embeddings",
)  # fmt: skip


class Keys(Protocol):
    """Keys and values of earlier tokens, such as a `SlotCache`."""

    def update(self, keys: Tensor, values: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Adds keys and values (B, K, Q, D) of a pass, and returns all that it may attend to (B, K, S, D)."""


class Attention(nn.Module):
    """Grouped-query attention with rotary positions.

    Args:
        config: sizes, and whether there are biases.
        width: size of the states that queries, keys and values are projected from.
    """

    def __init__(self, config: LlamaConfig, width: int) -> None:
        super().__init__()
        heads, bias = config.num_attention_heads, config.attention_bias
        key_heads = config.num_key_value_heads or heads
        self._size, self._groups = config.head_dim or config.hidden_size // heads, heads // key_heads
        self.q_proj = nn.Linear(width, heads * self._size, bias=bias)
        self.k_proj = nn.Linear(width, key_heads * self._size, bias=bias)
        self.v_proj = nn.Linear(width, key_heads * self._size, bias=bias)
        self.o_proj = nn.Linear(heads * self._size, config.hidden_size, bias=bias)

    def forward(self, hidden: Tensor, rotation: tuple[Tensor, Tensor], mask: Tensor, cache: Keys) -> Tensor:
        """(B, Q, width) -> (B, Q, H); `mask` is additive, (B, 1, Q, S)."""
        q, k, v = (
            project(hidden).unflatten(-1, (-1, self._size)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = apply_rotary_pos_emb(q, k, *rotation)
        keys, values = cache.update(k, v, 0)
        attended = attend(q, keys, values, fold_mask(mask, self._groups), None)
        projected: Tensor = self.o_proj(attended.transpose(1, 2).flatten(2))
        return projected


class GatedMLP(nn.Module):
    """Llama's feed-forward network.

    Args:
        config: sizes, the activation, and whether there are biases.
    """

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        size, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate_proj = nn.Linear(size, inner, bias=bias)
        self.up_proj = nn.Linear(size, inner, bias=bias)
        self.down_proj = nn.Linear(inner, size, bias=bias)
        self._activation = ACT2FN[config.hidden_act]

    def forward(self, hidden: Tensor) -> Tensor:
        """(B, Q, H) -> (B, Q, H)."""
        projected: Tensor = self.down_proj(self._activation(self.gate_proj(hidden)) * self.up_proj(hidden))
        return projected


class EagleHead(nn.Module, ABC):
    """A draft head of one target.

    It is fed pairs of a token and the feature of the position before it, and predicts the token after. Features of text
    are the target's; those of drafted tokens are the head's own states. It is a `DraftSource`.

    Args:
        config: sizes, and the rotary encoding.

    Attributes:
        config: the same.
        target_layers: which of the target's hidden states are read, as indices into transformers' `hidden_states`.
        name, revision: where it was loaded from; None: it was not.
    """

    config: LlamaConfig
    target_layers: tuple[int, ...]
    name: str | None = None
    revision: str | None = None

    def drafter(self, rows: int, slots: int, vocabulary: int) -> EagleDrafter:
        """See `DraftSource`."""
        return EagleDrafter(self, rows, slots, vocabulary)

    @property
    def fingerprint(self) -> str:
        """A digest of everything that q depends on beside the target and the dtype."""
        facts = [type(self).__name__, self.target_layers, *(str(getattr(self.config, name)) for name in _COMPUTED_WITH)]
        return hashlib.sha256((json.dumps(facts) + known_weights_digest(self)).encode()).hexdigest()

    def __repr__(self) -> str:
        """Tells heads apart, in cache keys and traces."""
        dtype = str(next(self.parameters()).dtype).removeprefix("torch.")
        return f"{type(self).__name__}({dtype}, {self.fingerprint!r})"

    @abstractmethod
    def fuse(self, states: Tensor) -> Tensor:
        """Returns features (B, Q, H) from the target's hidden states (B, Q, layers·H), one after the other."""

    @abstractmethod
    def forward(
        self, tokens: Tensor, features: Tensor, rotation: tuple[Tensor, Tensor], mask: Tensor, cache: Keys
    ) -> Tensor:
        """Returns the head's own states (B, Q, H), which are the features of the next tokens.

        Args:
            tokens: (B, Q).
            features: (B, Q, H) of the positions before them.
            rotation: cosines and sines of the positions.
            mask: additive (B, 1, Q, S) over the slots that the cache returns.
            cache: already aimed.
        """

    @abstractmethod
    def logits(self, states: Tensor) -> Tensor:
        """Returns logits (B, Q, V) over the target's vocabulary, -inf for tokens that the head does not know."""


class Eagle1Head(EagleHead):
    """A head of EAGLE-1 (arXiv 2401.15077) or EAGLE-2 (arXiv 2406.16858), which has the same weights.

    The layer has no norm before attention, and nothing has one at the end. Embeddings and output are the target's.

    Args:
        config: sizes, and the rotary encoding.
        target: a causal LM, whose embeddings and output are used.
        bias: whether the fusion has a bias.
    """

    def __init__(self, config: LlamaConfig, target: Any, bias: bool) -> None:
        super().__init__()
        self.config, self.target_layers = config, (-1,)
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=bias)
        self.self_attn, self.mlp = Attention(config, config.hidden_size), GatedMLP(config)
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self._shared = (target.get_input_embeddings(),)  # a tuple is no part of the module
        self._output = TargetOutput(target)

    def fuse(self, states: Tensor) -> Tensor:
        """Returns the states, of a single layer: they are the features."""
        return states

    def forward(
        self, tokens: Tensor, features: Tensor, rotation: tuple[Tensor, Tensor], mask: Tensor, cache: Keys
    ) -> Tensor:
        embedded = self._shared[0](tokens).to(features.device)  # layers of a target may be on several
        hidden = self.fc(torch.cat([embedded, features], -1))
        hidden = hidden + self.self_attn(hidden, rotation, mask, cache)
        out: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return out

    def logits(self, states: Tensor) -> Tensor:
        return self._output(states)


class Eagle3Layer(nn.Module):
    """The layer of an EAGLE-3 head: attention over the token's embedding beside the feature.

    Args:
        config: sizes, and whether there are biases.
    """

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm, self.hidden_norm = LlamaRMSNorm(size, eps), LlamaRMSNorm(size, eps)
        self.self_attn, self.mlp = Attention(config, 2 * size), GatedMLP(config)
        self.post_attention_layernorm = LlamaRMSNorm(size, eps)

    def forward(
        self, embedded: Tensor, features: Tensor, rotation: tuple[Tensor, Tensor], mask: Tensor, cache: Keys
    ) -> Tensor:
        both = torch.cat([self.input_layernorm(embedded), self.hidden_norm(features)], -1)
        hidden = features + self.self_attn(both, rotation, mask, cache)
        out: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return out


class Eagle3Head(EagleHead):
    """A head of EAGLE-3 (arXiv 2503.01840): features from three of the target's layers, and a vocabulary of its own.

    Its tokens are in the order of the target's ids, so one that knows all has the target's own.

    Args:
        config: sizes, and the rotary encoding; `vocab_size` is that of the embeddings.
        layers: which hidden states of the target are read.
        draft_vocabulary: number of tokens that the head can draft.
        embeddings: the target's, where the checkpoint has none of its own; None: it has.
        vocabulary: number of the target's tokens.
    """

    known: Tensor

    def __init__(
        self, config: LlamaConfig, layers: tuple[int, ...], draft_vocabulary: int, embeddings: Any, vocabulary: int
    ) -> None:
        super().__init__()
        size = config.hidden_size
        self.config, self.target_layers, self.vocabulary = config, layers, vocabulary
        self.fc = nn.Linear(len(layers) * size, size, bias=False)
        self.midlayer, self.norm = Eagle3Layer(config), LlamaRMSNorm(size, config.rms_norm_eps)
        self.lm_head = nn.Linear(size, draft_vocabulary, bias=False)
        if embeddings is None:
            self.embed_tokens = nn.Embedding(config.vocab_size, size)
        self._shared = (embeddings,)
        self.register_buffer("known", torch.arange(draft_vocabulary))  # the target's ids of the head's tokens

    def fuse(self, states: Tensor) -> Tensor:
        fused: Tensor = self.fc(states)
        return fused

    def forward(
        self, tokens: Tensor, features: Tensor, rotation: tuple[Tensor, Tensor], mask: Tensor, cache: Keys
    ) -> Tensor:
        embed = self._shared[0] if self._shared[0] is not None else self.embed_tokens
        embedded = embed(tokens).detach().to(features)  # training leaves embeddings as they are
        out: Tensor = self.midlayer(embedded, features, rotation, mask, cache)
        return out

    def logits(self, states: Tensor) -> Tensor:
        own = self.known_logits(states)
        if own.shape[-1] == self.vocabulary:
            return own
        spread = own.new_full((*own.shape[:-1], self.vocabulary), -torch.inf)
        return spread.index_copy_(-1, self.known, own)

    def known_logits(self, states: Tensor) -> Tensor:
        """Returns logits (…, K) over the tokens that the head knows, in the order of `known`."""
        logits: Tensor = self.lm_head(self.norm(states))
        return logits
