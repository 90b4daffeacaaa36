"""EAGLE heads computed over whole texts, one dense pass for every drafted token and no cache."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, rotate_half

from fsd_decoding.drafters.eagle_head import Eagle1Head
from support.models.tiny_heads import CONFIG
from support.models.tiny_models import VOCABULARY


def norm(states: Tensor, weight: Tensor) -> Tensor:
    """Llama's, which is computed in fp32."""
    single = states.float()
    return weight * (single * torch.rsqrt(single.square().mean(-1, keepdim=True) + CONFIG.rms_norm_eps)).to(
        states.dtype
    )


def attended(layer: Any, states: Tensor) -> Tensor:
    """Causal attention over whole sequences (n, width), a softmax over every earlier position: (n, H)."""
    n, size = len(states), CONFIG.head_dim
    q, k, v = (
        project(states).view(n, -1, size).transpose(0, 1) for project in (layer.q_proj, layer.k_proj, layer.v_proj)
    )
    cos, sin = LlamaRotaryEmbedding(CONFIG)(states, torch.arange(n)[None])
    q, k = q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin
    groups = len(q) // len(k)
    k, v = k.repeat_interleave(groups, 0), v.repeat_interleave(groups, 0)
    scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])
    scores = scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -torch.inf)
    out: Tensor = layer.o_proj((torch.softmax(scores, -1) @ v).transpose(0, 1).reshape(n, -1))
    return out


def mlp(layer: Any, states: Tensor) -> Tensor:
    out: Tensor = layer.down_proj(torch.nn.functional.silu(layer.gate_proj(states)) * layer.up_proj(states))
    return out


def own_states(head: Any, target: Any, tokens: list[int], features: Tensor) -> Tensor:
    """The head's states after pairs of tokens and features (n, H)."""
    embedded = target.get_input_embeddings()(torch.tensor(tokens))
    if isinstance(head, Eagle1Head):
        hidden = head.fc(torch.cat([embedded, features], -1))
        hidden = hidden + attended(head.self_attn, hidden)
        out: Tensor = hidden + mlp(head.mlp, norm(hidden, head.post_attention_layernorm.weight))
        return out
    layer = head.midlayer
    both = [norm(embedded, layer.input_layernorm.weight), norm(features, layer.hidden_norm.weight)]
    hidden = features + attended(layer.self_attn, torch.cat(both, -1))
    return hidden + mlp(layer.mlp, norm(hidden, layer.post_attention_layernorm.weight))


@cache
def target_states(target: Any, layers: tuple[int, ...], text: tuple[int, ...]) -> Tensor:
    """The target's states after each token of a text, those of these layers side by side."""
    states = target(torch.tensor([text]), use_cache=False, output_hidden_states=True).hidden_states
    return torch.cat([states[layer] for layer in layers], -1)[0]


def dense_q(head: Any, target: Any, text: list[int], path: list[int]) -> Tensor:
    """Logits (V,) of q after a text and drafted tokens, from one whole pass for every drafted token."""
    features = target_states(target, tuple(head.target_layers), tuple(text))
    features = features if isinstance(head, Eagle1Head) else head.fc(features)
    tokens, features = (text[1:], features[:-1]) if len(text) > 1 else (text, features)
    own = own_states(head, target, tokens, features)
    for token in path:
        tokens, features = [*tokens, token], torch.cat([features, own[-1:]])
        own = own_states(head, target, tokens, features)
    if isinstance(head, Eagle1Head):
        logits: Tensor = target.get_output_embeddings()(own[-1])
        return logits
    spread = torch.full((VOCABULARY,), -torch.inf, dtype=own.dtype)
    spread[head.known] = head.lm_head(norm(own[-1], head.norm.weight))
    return spread
