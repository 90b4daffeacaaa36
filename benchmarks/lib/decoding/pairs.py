"""Pairs of models that are timed: the bundled one, and random ones as deep as real models.

A random pair agrees without training because all layers of its target after the first two are scaled down: their o_proj
and down_proj are multiplied by `echo`. The draft consists of those first two layers with the target's own embedding,
norm and head. The smaller `echo` is, the more often they agree; every run measures and reports the acceptance rate.
Random weights cost what trained ones do, and tell nothing about quality.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from fsd_calib import SpeculativeDecoder, load_task
from fsd_data import pair_paths

DRAFT_LAYERS = 2
_VOCABULARY, _PROMPT = 8000, 32
_HEAD_SPREAD = 4.0  # widens the gaps between logits, so that few of the largest two are nearly tied
_SEED = 424_242


@dataclass(frozen=True)
class Pair:
    """A target and a draft with prompts for them."""

    name: str
    target: Any
    draft: Any
    tokenizer: Any
    prompts: list[list[int]]
    max_new_tokens: int
    thresholds: tuple[float, float, float]  # of `js`: they accept a little, about half and most of what `sd` rejects

    def first(self, prompts: int) -> Pair:
        return replace(self, prompts=self.prompts[:prompts])


def bundled(prompts: int, max_new_tokens: int | None = None) -> Pair:
    """Returns the pair that comes with fsd-calib, with held-out arithmetic problems; texts end with EOS."""
    decoder = SpeculativeDecoder.from_pretrained(*pair_paths())
    task = load_task("arithmetic", seed=_SEED, limit=prompts)
    ids = [list(decoder.tokenizer(problem.prompt)["input_ids"]) for problem in task.problems]
    length = task.max_new_tokens if max_new_tokens is None else max_new_tokens
    return Pair("bundled", decoder.target, decoder.draft, decoder.tokenizer, ids, length, (0.05, 0.08, 0.2))


def random_pair(layers: int, hidden: int, echo: float, prompts: int, max_new_tokens: int) -> Pair:
    """Returns Llamas with random weights and random prompts; no token ends a text."""
    torch.manual_seed(_SEED)
    target = LlamaForCausalLM(_configuration(layers, hidden)).eval()
    _scale(target, echo)
    draft = LlamaForCausalLM(_configuration(DRAFT_LAYERS, hidden)).eval()
    names = draft.state_dict().keys()
    draft.load_state_dict({name: value for name, value in target.state_dict().items() if name in names})
    ids = torch.randint(_VOCABULARY, (prompts, _PROMPT)).tolist()
    return Pair(f"random, {layers} layers", target, draft, _tokenizer(), ids, max_new_tokens, (0.003, 0.004, 0.005))


def copy_models(pair: Pair) -> tuple[Any, Any]:
    """Returns copies of both models, for a contender that may change them."""
    return copy.deepcopy(pair.target), copy.deepcopy(pair.draft)


def parameters(model: Any) -> int:
    return sum(p.numel() for p in model.parameters())


def _configuration(layers: int, hidden: int) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=_VOCABULARY, hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=layers,
        num_attention_heads=hidden // 32, num_key_value_heads=hidden // 64, max_position_embeddings=512,
        initializer_range=0.05, bos_token_id=None, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip


@torch.no_grad()
def _scale(target: LlamaForCausalLM, echo: float) -> None:
    for layer in target.model.layers[DRAFT_LAYERS:]:
        layer.self_attn.o_proj.weight.mul_(echo)
        layer.mlp.down_proj.weight.mul_(echo)
    target.lm_head.weight.mul_(_HEAD_SPREAD)


def _tokenizer() -> PreTrainedTokenizerFast:
    words = {f"w{i}": i for i in range(_VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="w0")
