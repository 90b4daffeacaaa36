"""The tokens that end a text are those that end it in transformers' own `generate`."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from fsd_decoding.decoder import SpeculativeDecoder
from support.models.tiny_models import EOS, word_tokenizer
from support.models.tiny_pair import related

NEW = 40
PROMPTS = [[first, 5, 11] for first in range(2, 32, 3)]
CONFIGURED: dict[str, Any] = {
    "none": None,
    "one": EOS[1],
    "several": list(EOS[1:]),
    "a tensor": torch.tensor(EOS[2]),
    "an empty list": [],
}


@pytest.mark.thinned(every=5)
@pytest.mark.parametrize("rule", ["target", "coupled"])
@pytest.mark.parametrize("case", CONFIGURED)
def test_a_text_ends_where_generate_ends_it(case: str, rule: str) -> None:
    """None of these configurations names the tokenizer's EOS, of which `generate` does not know."""
    target, draft = related(seed=1, spread=0.05)
    target.generation_config.eos_token_id = CONFIGURED[case]
    results = SpeculativeDecoder(target, draft, word_tokenizer(), rule=rule).generate(PROMPTS, NEW)
    expected = _generated_of(case)
    for result, (tokens, ended) in zip(results, expected, strict=True):
        assert result.tokens == tokens
        assert (result.finish_reason == "eos") == ended
    assert any(EOS[0] in tokens for tokens, _ in expected)  # the tokenizer's own, within a text


@cache
def _generated_of(case: str) -> list[tuple[list[int], bool]]:
    target, _ = related(seed=1, spread=0.05)
    target.generation_config.eos_token_id = CONFIGURED[case]
    return [_generated(target, prompt) for prompt in PROMPTS]


def _generated(target: Any, prompt: list[int]) -> tuple[list[int], bool]:
    """The new tokens of `generate`, without the EOS that ends them, and whether there is one."""
    ids = torch.tensor([prompt])
    out = target.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, do_sample=False)
    tokens = out[0, len(prompt) :].tolist()
    configured = target.generation_config.eos_token_id
    ends = [] if configured is None else torch.as_tensor(configured).flatten().tolist()
    return (tokens[:-1], True) if tokens[-1] in ends else (tokens, False)
