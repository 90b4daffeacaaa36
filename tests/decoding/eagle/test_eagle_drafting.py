"""Drafting with EAGLE heads: q against a dense computation of the whole text, and lossless texts."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, rotate_half

from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.eagle.head import Eagle1Head
from fsd_decoding.trees.shape import TreeShape
from support.models.tiny_heads import CONFIG, HEADS
from support.models.tiny_models import VOCABULARY, llama, word_tokenizer
from support.models.tiny_pair import ragged_prompts

NEW = 20
SHAPES = [None, TreeShape(1, 9), TreeShape(3, 12), TreeShape(2, 5)]


@pytest.fixture(scope="module")
def target() -> Any:
    return llama(seed=0, layers=8)


# --- a dense computation of one whole text -----------------------------------------------------------


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


def dense_q(head: Any, target: Any, text: list[int], path: list[int]) -> Tensor:
    """Logits (V,) of q after a text and drafted tokens, from one whole pass for every drafted token."""
    states = target(torch.tensor([text]), use_cache=False, output_hidden_states=True).hidden_states
    features = torch.cat([states[layer] for layer in head.target_layers], -1)[0]
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


@pytest.mark.parametrize("lean", [True, False])
@pytest.mark.parametrize("tree", SHAPES, ids=str)
@pytest.mark.parametrize("kind", HEADS)
def test_q_is_that_of_a_dense_computation(kind: str, tree: TreeShape | None, lean: bool, target: Any) -> None:
    """In every round of six texts in three rows, at every decided token, the target's states and the head's own."""
    head, prompts = HEADS[kind](target), ragged_prompts(6)
    decoder = SpeculativeDecoder(target, head, word_tokenizer(), rule="fsd-coupled", threshold=0.3, tree=tree,
                                 draft_length=3, lean=lean)  # fmt: skip
    checked = 0

    def observe(record: Any) -> None:
        nonlocal checked
        for row, request in enumerate(record.requests):
            if request is None:
                continue
            length = int(record.proposal.positions[row, 0])
            text, drafted = record.proposal.tokens[row, :length].tolist(), record.proposal.drafted[row].tolist()
            for place in range(int(record.drafted[row])):
                q = torch.log_softmax(dense_q(head, target, text, drafted[:place]), -1)
                actual = torch.log_softmax(record.proposal.draft_logits[row, place], -1)
                torch.testing.assert_close(actual, q, rtol=0, atol=1e-6)  # norms are fp32
                checked += 1

    with torch.inference_mode():
        decoder.generate(prompts, NEW, 0.9, batch_size=3, observer=observe)
    assert checked > 60


# --- texts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("kind", HEADS)
def test_lossless_texts_are_the_targets_own(kind: str, temperature: float, target: Any) -> None:
    decoder = SpeculativeDecoder(target, HEADS[kind](target), word_tokenizer(), rule="coupled", draft_length=4)
    prompts = ragged_prompts(20)
    own = decoder.generate(prompts, NEW, temperature, rule="target")
    rounds = {}
    for tree in SHAPES:
        texts = (decoder if tree is None else decoder.with_config(tree=tree)).generate(
            prompts, NEW, temperature, batch_size=6
        )
        assert [r.tokens for r in texts] == [r.tokens for r in own]
        rounds[tree] = [r.rounds for r in texts]
    assert rounds[None] == rounds[TreeShape(1, 9)]
