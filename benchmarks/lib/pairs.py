"""Pairs of models that are timed: the bundled one, and random ones as deep as real models.

A random pair agrees without training because all layers of its target after the first two are scaled down: their o_proj
and down_proj are multiplied by `echo`. The draft consists of those first two layers with the target's own embedding,
norm and head. The smaller `echo` is, the more often they agree; every run measures and reports the acceptance rate.
Random weights cost what trained ones do, and tell nothing about quality.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from fsd_calib import SpeculativeDecoder, load_task
from fsd_data import pair_paths

_DRAFT_LAYERS = 2
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
    thresholds: tuple[float, ...] = ()  # of `js`: they accept a little, about half and most of what `sd` rejects

    def first(self, prompts: int) -> Pair:
        return replace(self, prompts=self.prompts[:prompts])

    def save(self, folder: Path) -> tuple[str, str]:
        """Saves both models with their tokenizer, and returns the paths of their folders."""
        for name, model in (("target", self.target), ("draft", self.draft)):
            model.save_pretrained(folder / name)
            self.tokenizer.save_pretrained(folder / name)
        return str(folder / "target"), str(folder / "draft")


def bundled(prompts: int, max_new_tokens: int | None = None) -> Pair:
    """Returns the pair that comes with fsd-calib, with held-out arithmetic problems; texts end with EOS."""
    decoder = SpeculativeDecoder.from_pretrained(*pair_paths())
    task = load_task("arithmetic", seed=_SEED, limit=prompts)
    ids = [list(decoder.tokenizer(problem.prompt)["input_ids"]) for problem in task.problems]
    length = task.max_new_tokens if max_new_tokens is None else max_new_tokens
    return Pair("bundled", decoder.target, decoder.draft, decoder.tokenizer, ids, length, (0.05, 0.08, 0.2))


def random_pair(layers: int, hidden: int, echo: float, prompts: int, max_new_tokens: int) -> Pair:
    """Returns Llamas with random weights and random prompts; no token ends a text."""

    def config(layers: int) -> LlamaConfig:
        return LlamaConfig(
            vocab_size=_VOCABULARY, hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=layers,
            num_attention_heads=hidden // 32, num_key_value_heads=hidden // 64, max_position_embeddings=512,
            initializer_range=0.05, bos_token_id=None, eos_token_id=None, pad_token_id=0,
        )  # fmt: skip

    torch.manual_seed(_SEED)
    target = LlamaForCausalLM(config(layers)).eval()
    with torch.no_grad():
        for layer in target.model.layers[_DRAFT_LAYERS:]:
            layer.self_attn.o_proj.weight.mul_(echo)
            layer.mlp.down_proj.weight.mul_(echo)
        target.lm_head.weight.mul_(_HEAD_SPREAD)
    draft = LlamaForCausalLM(config(_DRAFT_LAYERS)).eval()
    names = draft.state_dict().keys()
    draft.load_state_dict({name: value for name, value in target.state_dict().items() if name in names})
    ids = torch.randint(_VOCABULARY, (prompts, _PROMPT)).tolist()
    name, tokenizer = f"random, {layers} layers", _tokenizer(_VOCABULARY)
    return Pair(name, target, draft, tokenizer, ids, max_new_tokens, (0.003, 0.004, 0.005))


def _tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    words = {f"w{i}": i for i in range(vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="w0")
