"""A pair over a vocabulary of five words, none of which ends a text, and the laws of its texts by enumeration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import product
from typing import Any

import torch
from scipy.stats import chisquare

from fsd_decoding.decoder import SpeculativeDecoder
from support.models.tiny_models import word_tokenizer
from support.models.tiny_pair import related

WORDS, PROMPT = 5, [2, 4, 3]

Text = tuple[int, ...]


def five_words(seed: int = 0, **settings: Any) -> SpeculativeDecoder:
    """Returns a decoder in float64; each word has a substantial probability."""
    pair = related(seed=2, spread=0.2, layers=1, vocab_size=WORDS, eos_token_id=[WORDS])
    with torch.no_grad():
        for model in pair:
            model.get_output_embeddings().weight.mul_(0.125)
    return SpeculativeDecoder(*pair, word_tokenizer(WORDS), seed=seed, **settings)


def law(model: Any, steps: int, temperature: float = 1.0) -> dict[Text, float]:
    """The probability of each text of so many words after the prompt, by uncached forward passes."""
    texts = list(product(range(WORDS), repeat=steps))
    every = torch.tensor(texts)
    prompts = torch.tensor(PROMPT).expand(len(every), -1)
    with torch.inference_mode():
        logits = model(torch.cat([prompts, every], 1), use_cache=False).logits[:, len(PROMPT) - 1 : -1]
    logged = torch.log_softmax(logits / temperature, -1).gather(-1, every[:, :, None]).sum((1, 2))
    return dict(zip(texts, logged.exp().tolist(), strict=True))


def p_value(seen: Counter[Any], expected: Mapping[Any, float]) -> float:
    """Of a chi-square test of counts by their probabilities; what is expected less than ten times is one bin."""
    total = sum(seen.values())
    often = [each for each, share in expected.items() if share * total >= 10]
    counts, wanted = [float(seen[each]) for each in often], [expected[each] * total for each in often]
    rare = [total - sum(counts), total - sum(wanted)]
    if rare[1] < 1:  # which no chi-square test is for
        return 0.0 if rare[0] > 20 else float(chisquare(counts, wanted, sum_check=False).pvalue)
    return float(chisquare([*counts, rare[0]], [*wanted, rare[1]]).pvalue)
