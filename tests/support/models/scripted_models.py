"""A pair of models that generate a given text of many alphabets, whatever their tokenizer."""

from __future__ import annotations

from typing import Any

import torch
from transformers import GPT2Config

from fsd_decoding.decoder import SpeculativeDecoder
from support.models.tiny_models import random_model
from support.models.tiny_tokenizers import TOKENIZERS

TEXT = "Hi 😀🎉 naïve 你好, don't… x  y\n\nend."
POSITIONS = 96


def scripted(tokens: list[int], vocabulary: int) -> Any:
    """A GPT-2 that depends on positions only: at position i it predicts tokens[i]."""
    config = GPT2Config(vocab_size=vocabulary, n_embd=POSITIONS, n_layer=1, n_head=1, n_positions=POSITIONS,
                        tie_word_embeddings=False, bos_token_id=None, eos_token_id=0)  # fmt: skip
    model = random_model(config, seed=0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
        model.transformer.ln_f.weight.fill_(1.0)
        model.transformer.wpe.weight.copy_(torch.eye(POSITIONS))
        for position, token in enumerate(tokens[1:]):
            model.lm_head.weight[token, position] = 1.0
    return model


def generating(kind: str, text: str = TEXT) -> SpeculativeDecoder:
    """A target that generates `text` and EOS after a one-token prompt, and a draft that errs at every third token."""
    tokenizer = TOKENIZERS[kind]
    script = [5, *tokenizer(text)["input_ids"], 0]
    wrong = [token if i % 3 else 5 for i, token in enumerate(script)]
    target, draft = (scripted(tokens, len(tokenizer)) for tokens in (script, wrong))
    return SpeculativeDecoder(target, draft, tokenizer, rule="coupled", draft_length=4)
