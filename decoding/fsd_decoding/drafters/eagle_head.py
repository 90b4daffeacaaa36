"""EAGLE heads: fusion of token and feature, one decoder layer, logits over the target's vocabulary, and drafting."""

from __future__ import annotations

import math
import weakref
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding, apply_rotary_pos_emb

from fsd_common.digests import facts_digest
from fsd_decoding.drafters.base import Frontier
from fsd_decoding.models.runner import PREFILL_CHUNK, ModelRunner
from fsd_decoding.models.slot_cache import SLIDING, Branches, SlotCache, attend, fold_mask
from fsd_decoding.models.weights_digest import known_weights_digest
from fsd_decoding.tensors import readable

_POWERS = {  # of a configuration's entries, in what logits are multiplied by
    "logit_scale": 1,  # Cohere
    "output_multiplier": 1,  # Muse
    "logits_scaling": -1,  # Granite, MiniCPM3
    "logits_mup_width_multiplier": -1,  # Inkling
}
_OPPOSITE = {"hyperclovax": {"logits_scaling": 1}}  # by type of model: HyperCLOVA X took Granite's name, and multiplies


class TargetOutput:
    """The output layer of a target, and what the target makes of its logits: some models scale them, or cap them.

    The entries of configurations that say so were read in the models of transformers 5.24. Those of recurrent models
    are not among them, as these cannot be decoded with.

    Args:
        target: a causal LM.
    """

    def __init__(self, target: Any) -> None:
        config = target.config.get_text_config()
        self._layer, self._factor = target.get_output_embeddings(), _factor(config)
        self._cap = getattr(config, "final_logit_softcapping", None)  # Gemma

    def __call__(self, states: Tensor) -> Tensor:
        """Returns logits (…, V) of states (…, H), where the output layer is."""
        logits: Tensor = self._layer(states) * self._factor
        return logits if self._cap is None else torch.tanh(logits / self._cap) * self._cap


def _factor(config: Any) -> float:
    """What a model multiplies its logits by; an entry that is missing or None changes nothing."""
    powers = _POWERS | _OPPOSITE.get(config.model_type, {})
    factor: float = math.prod((getattr(config, name, None) or 1) ** power for name, power in powers.items())
    return factor


_COMPUTED_WITH = (
    "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_act", "rms_norm_eps", "rope_parameters",
    "max_position_embeddings",
)  # fmt: skip
NORMS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
"""Entries of a configuration that change where an EAGLE-3 head has norms; see `Eagle3Head`."""


def _says(config: LlamaConfig, norm: str) -> bool:
    """Whether a configuration has one of `NORMS`."""
    return bool(getattr(config, norm, False))


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
        trained_on: keys of the problems that it learnt from, as far as its folder says.
    """

    config: LlamaConfig
    target_layers: tuple[int, ...]
    name: str | None = None
    revision: str | None = None
    trained_on: frozenset[int] = frozenset()

    def drafter(self, rows: int, slots: int, vocabulary: int) -> EagleDrafter:
        """See `DraftSource`."""
        return EagleDrafter(self, rows, slots, vocabulary)

    @property
    def fingerprint(self) -> str:
        """A digest of everything that q depends on beside the target and the dtype."""
        computed = [str(getattr(self.config, name)) for name in _COMPUTED_WITH]
        # Heads without these keep the fingerprint that profiles have of them.
        computed += [name for name in NORMS if _says(self.config, name)]
        computed += [] if self.window is None else [f"window of {self.window}"]
        return facts_digest([type(self).__name__, self.target_layers, *computed, known_weights_digest(self)])

    @property
    def window(self) -> int | None:
        """Number of positions that its attention sees, a token's own among them; None: all."""
        kinds = getattr(self.config, "layer_types", None)
        return self.config.sliding_window if kinds and kinds[0] == SLIDING else None

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
        config: sizes, whether there are biases, and `norm_before_residual`.
    """

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm, self.hidden_norm = LlamaRMSNorm(size, eps), LlamaRMSNorm(size, eps)
        self.self_attn, self.mlp = Attention(config, 2 * size), GatedMLP(config)
        self.post_attention_layernorm = LlamaRMSNorm(size, eps)
        self._adds_to_normed = _says(config, "norm_before_residual")

    def forward(
        self, embedded: Tensor, features: Tensor, rotation: tuple[Tensor, Tensor], mask: Tensor, cache: Keys
    ) -> Tensor:
        normed = self.hidden_norm(features)
        both = torch.cat([self.input_layernorm(embedded), normed], -1)
        hidden = (normed if self._adds_to_normed else features) + self.self_attn(both, rotation, mask, cache)
        out: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return out


class Eagle3Head(EagleHead):
    """A head of EAGLE-3 (arXiv 2503.01840): features from three of the target's layers, and a vocabulary of its own.

    Its tokens are in the order of the target's ids, so one that knows all has the target's own. Entries of its
    configuration, which are off in the paper, change its norms:

    - `norm_before_residual`: the layer adds to the normed features instead of the features;
    - `norm_before_fc`: the target's states side by side have a norm before they are fused;
    - `fc_norm`: each of the target's states has one of its own there;
    - `norm_output`: the head's own states are what the last norm makes of them.

    Args:
        config: sizes, the rotary encoding, and the norms; `vocab_size` is that of the embeddings.
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
        size, eps = config.hidden_size, config.rms_norm_eps
        self.config, self.target_layers, self.vocabulary = config, layers, vocabulary
        self.input_norm = LlamaRMSNorm(len(layers) * size, eps) if _says(config, "norm_before_fc") else nn.Identity()
        self.fc_norm = nn.ModuleList(LlamaRMSNorm(size, eps) for _ in layers if _says(config, "fc_norm"))
        self.fc = nn.Linear(len(layers) * size, size, bias=False)
        self.midlayer, self.norm = Eagle3Layer(config), LlamaRMSNorm(size, eps)
        self._outputs_normed = _says(config, "norm_output")
        self.lm_head = nn.Linear(size, draft_vocabulary, bias=False)
        if embeddings is None:
            self.embed_tokens = nn.Embedding(config.vocab_size, size)
        self._shared = (embeddings,)
        self.register_buffer("known", torch.arange(draft_vocabulary))  # the target's ids of the head's tokens

    def fuse(self, states: Tensor) -> Tensor:
        states = self.input_norm(states)
        if self.fc_norm:
            parts = zip(self.fc_norm, states.chunk(len(self.fc_norm), -1), strict=True)
            states = torch.cat([norm(part) for norm, part in parts], -1)
        fused: Tensor = self.fc(states)
        return fused

    def forward(
        self, tokens: Tensor, features: Tensor, rotation: tuple[Tensor, Tensor], mask: Tensor, cache: Keys
    ) -> Tensor:
        embed = self._shared[0] if self._shared[0] is not None else self.embed_tokens
        embedded = embed(tokens).detach().to(features)  # training leaves embeddings as they are
        out: Tensor = self.midlayer(embedded, features, rotation, mask, cache)
        return self.norm(out) if self._outputs_normed else out

    def logits(self, states: Tensor) -> Tensor:
        own = self.known_logits(states)
        if own.shape[-1] == self.vocabulary:
            return own
        spread = own.new_full((*own.shape[:-1], self.vocabulary), -torch.inf)
        return spread.index_copy_(-1, self.known, own)

    def known_logits(self, states: Tensor) -> Tensor:
        """Returns logits (…, K) over the tokens that the head knows, in the order of `known`."""
        logits: Tensor = self.lm_head(states if self._outputs_normed else self.norm(states))
        return logits


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

    def prefill(self, rows: Tensor, tokens: Tensor, until: int, start: int = 0) -> None:
        """Feeds the pairs of prompts whose states the target has; the last ones are left to the next round."""
        for begin in range(max(start - 1, 0), until - 1, PREFILL_CHUNK):
            slots = torch.arange(begin, min(begin + PREFILL_CHUNK, until - 1), device=tokens.device)
            slots = slots.expand(len(rows), -1)
            features = self._features_of_text(rows, slots)
            self._run(tokens.gather(1, slots + 1), features, slots, slots, int(slots.shape[1]) + begin, rows=rows)

    def catch_up(self) -> None:
        """Does nothing, as nothing waits."""

    def copy(self, sources: Sequence[int], rows: Sequence[int], count: int) -> None:
        self._cache.copy(sources, rows, count)

    def keep(self, rows: Sequence[int]) -> None:
        self._cache.keep(rows)

    def logits(self, tokens: Tensor, lengths: Tensor, step: int, kv_length: int) -> Tensor:
        if step == 0:
            # All pairs that the last round may have made text.
            slots = lengths[:, None] - 1 - torch.arange(self._fed_again, 0, -1, device=lengths.device)
            slots = slots.clamp_min(0)
            fed = tokens.gather(1, torch.minimum(slots + 1, lengths[:, None] - 1))
            features = self._features_of_text(None, slots)
        else:
            slots = _beyond(lengths)[:, None] - 1 + step
            fed, features = tokens.gather(1, lengths[:, None] - 1 + step), self._last[: len(tokens)]
        states = self._run(fed, features, slots, slots, kv_length)
        self._features = self._last[: len(tokens)].copy_(states[:, -1:])
        return self._logits(self._features)

    def expand(self, tokens: Tensor, lengths: Tensor, frontier: Frontier, kv_length: int) -> Tensor:
        starts, scratch = _beyond(lengths), frontier.seen.shape[2]
        depths = torch.arange(scratch, device=lengths.device)[None] // frontier.width + 1
        branches = Branches(starts, starts[:, None] + frontier.places, frontier.seen, depths)
        positions = (starts[:, None] + (frontier.depth - 1)).expand_as(frontier.tokens)
        before = frontier.parents.unsqueeze(-1).expand(-1, -1, self._features.shape[2])
        features = self._features.gather(1, before)
        self._features = self._run(frontier.tokens, features, positions, branches.slots, kv_length, branches)
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
        kv_length: int,
        branches: Branches | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:
        """Returns the head's own states (B, Q, H) of pairs of tokens and features, and keeps their keys and values.

        Args:
            tokens, positions, slots: (B, Q).
            features: (B, Q, H).
            kv_length: number of slots to attend to.
            branches: where the pairs are nodes of trees; None: each sees all slots up to its own.
            rows: (B,) rows of the cache; None: all.
        """
        self._cache.aim(rows, slots, kv_length)
        seen = self._slots[:kv_length]
        visible = seen <= slots.unsqueeze(-1) if branches is None else branches.visible(seen)
        if window := self._head.window:
            places = seen if branches is None else branches.positions(seen).unsqueeze(1)
            visible = visible & (places > positions.unsqueeze(-1) - window)
        mask = torch.where(visible, self._visible, self._hidden).unsqueeze(1)
        states: Tensor = self._head(tokens, features, self._rotation(positions), mask, self._cache)
        return states

    def _logits(self, states: Tensor) -> Tensor:
        logits = self._head.logits(states)[..., : self._vocabulary].to(states.device)  # its output may be the target's
        return readable(logits)


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
