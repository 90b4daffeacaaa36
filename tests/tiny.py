"""Tiny random models and a tokenizer for them. Knows transformers' configurations and nothing of ours."""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

VOCABULARY = 40
EOS = (1, 7, 19)  # several, so that random models end some texts


def word_tokenizer(words: int = VOCABULARY) -> PreTrainedTokenizerFast:
    """`w2 w3` -> [2, 3]."""
    vocabulary = {"<pad>": 0, "<eos>": EOS[0], **{f"w{i}": i for i in range(2, words)}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")


def random_model(config: Any, seed: int, spread: float = 4.0) -> Any:
    """A float64 model whose next-token distributions are far from uniform."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float64).eval()
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(spread)
    return model


def llama(seed: int, layers: int = 2, **changes: Any) -> Any:
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128, initializer_range=0.3,
        bos_token_id=None, eos_token_id=list(EOS), pad_token_id=0,
    )  # fmt: skip
    for name, value in changes.items():
        setattr(config, name, value)
    return random_model(config, seed)
