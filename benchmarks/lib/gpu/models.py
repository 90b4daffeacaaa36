"""Models that are decoded on a GPU: large ones with random weights, and the bundled pair."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

from fsd_data import pair_paths
from fsd_data.problems import generate
from fsd_data.tokenizer import as_prompt

_LLAMA = {"rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0}, "max_position_embeddings": 131_072}
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "8B": {
        "vocab_size": 128_256, "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "tie_word_embeddings": False, **_LLAMA,
    },
    "1B": {
        "vocab_size": 128_256, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "tie_word_embeddings": True, **_LLAMA,
    },
    "toy": {
        "vocab_size": 512, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True, **_LLAMA,
    },
}  # fmt: skip
_ENDLESS: Mapping[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}  # no token ends a text
_SEED = 7


@cache
def large(shape: str, device: str) -> Any:
    """Returns the random Llama of a shape in bf16; no two of them agree on anything."""
    torch.manual_seed(_SEED)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            return LlamaForCausalLM(LlamaConfig(**SHAPES[shape], **_ENDLESS, dtype=torch.bfloat16)).eval()
    finally:
        torch.set_default_dtype(before)


def bundled(dtype: str, device: str, layers: int | None) -> tuple[Any, Any]:
    """Returns the bundled target and draft, cut to their first `layers`; None: whole."""
    logging.disable_progress_bar()

    def load(path: Path) -> Any:
        model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype))
        model.model.layers = model.model.layers[:layers]
        return model.to(device).eval()

    target, draft = pair_paths()
    return load(target), load(draft)


def word_problems(count: int) -> list[list[int]]:
    """Returns prompts of word problems that the bundled pair was not trained on, as token ids."""
    tokenizer: Any = AutoTokenizer.from_pretrained(pair_paths()[0])
    questions = (problem.question for problem in islice(generate(seed=3), count))
    return [tokenizer(as_prompt(tokenizer, question))["input_ids"] for question in questions]


def random_prompts(shape: str, tokens: int, count: int) -> list[list[int]]:
    """Returns `count` prompts of as many tokens."""
    drawn: list[list[int]] = torch.randint(SHAPES[shape]["vocab_size"], (count, tokens)).tolist()
    return drawn
