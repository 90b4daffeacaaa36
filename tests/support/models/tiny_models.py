"""Tiny random models of several transformers architectures, and a tokenizer for them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Phi3Config,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

VOCABULARY = 40
EOS = (1, 7, 19)  # several, so that random models end some texts
CONTEXT = 64
WINDOW = 6
SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": CONTEXT,
    "initializer_range": 0.3, "bos_token_id": None, "eos_token_id": list(EOS), "pad_token_id": 0,
}  # fmt: skip
MIXED = ["sliding_attention", "full_attention"]
FAMILIES = {
    "llama": LlamaConfig(**SMALL),
    "qwen2": Qwen2Config(**SMALL),
    "qwen3": Qwen3Config(**SMALL),
    "mistral": MistralConfig(**SMALL, sliding_window=WINDOW),
    "gemma2": Gemma2Config(**SMALL, sliding_window=WINDOW, layer_types=MIXED, attn_logit_softcapping=2.0),
    "gemma3": Gemma3TextConfig(**SMALL, sliding_window=WINDOW, layer_types=MIXED),
    "gpt-neox": GPTNeoXConfig(**SMALL),
    "gpt2": GPT2Config(**SMALL),
    "phi3": Phi3Config(**SMALL, sliding_window=WINDOW),
    "mixtral": MixtralConfig(**SMALL, num_local_experts=4, num_experts_per_tok=2),
}


def word_tokenizer(words: int = VOCABULARY, others: Mapping[int, str] = {}) -> PreTrainedTokenizerFast:
    """Returns a tokenizer that maps `w2 w3` to [2, 3]. others: by id, words that are spelled differently."""
    vocabulary = {"<pad>": 0, "<eos>": EOS[0], **{others.get(i, f"w{i}"): i for i in range(2, words)}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")


def random_model(config: Any, seed: int, spread: float = 4.0, attention: str | None = None) -> Any:
    """Returns a float64 model whose next-token distributions are far from uniform."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(
        config,
        dtype=torch.float64,
        attn_implementation=attention,
        experts_implementation="eager",  # the default has no float64 kernel
    ).eval()
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(spread)
    return model


def llama(seed: int, layers: int = 2, **changes: Any) -> Any:
    return random_model(
        LlamaConfig(**SMALL | {"num_hidden_layers": layers, "max_position_embeddings": 128} | changes), seed
    )


def continuations(model: Any, prompt: list[int], temperature: float) -> Tensor:
    """Returns the probabilities (6, 6, 6) of the next three tokens under a model with a vocabulary of 6."""
    pairs = torch.tensor([prompt + list(two) for two in itertools.product(range(6), repeat=2)])
    p = torch.softmax(model(input_ids=pairs).logits / temperature, -1)  # (36, 4, 6)
    first, second, third = p[0, 1], p[::6, 2], p[:, 3]
    return first[:, None, None] * second[:, :, None] * third.view(6, 6, 6)
