"""Beam search at temperature 0: transformers' own texts and scores, with and without a draft."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from fsd_calib.tasks import load_task
from fsd_data import pair_paths
from fsd_decoding.beams.result import BeamResult
from fsd_decoding.decoder import SpeculativeDecoder
from support.models.tiny_pair import ragged_prompts, tiny_decoder

Texts = list[tuple[list[int], float]]


def texts_of_transformers(
    decoder: SpeculativeDecoder, prompt: list[int], beams: int, new: int, **settings: Any
) -> Texts:
    """The new tokens, without EOS, and scores of all beams."""
    ids = torch.tensor([prompt])
    out = decoder.target.generate(
        ids, attention_mask=torch.ones_like(ids), num_beams=beams, num_return_sequences=beams, max_new_tokens=new,
        do_sample=False, output_scores=True, return_dict_in_generate=True, pad_token_id=0, **settings,
    )  # fmt: skip
    texts = [sequence[len(prompt) :] for sequence in out.sequences.tolist()]
    ends = [next((n for n, token in enumerate(text) if token in decoder.eos), len(text)) for text in texts]
    kept = [text[:end] for text, end in zip(texts, ends, strict=True)]
    return list(zip(kept, out.sequences_scores.tolist(), strict=True))


def assert_same(result: BeamResult, texts: Texts) -> None:
    real = [text for text in texts if text[1] > -1e8]  # others fill up what there are too few of
    assert [beam.tokens for beam in result.beams] == [tokens for tokens, _ in real]
    assert [beam.score for beam in result.beams] == pytest.approx([score for _, score in real], abs=1e-4)


@pytest.mark.parametrize("rule", ["target", "coupled"])
@pytest.mark.parametrize(
    ("beams", "new", "settings"),
    [
        (1, 12, {}),
        (2, 1, {}),
        (3, 12, {}),
        (4, 20, {"length_penalty": 0.0}),
        (3, 20, {"length_penalty": 2.0, "early_stopping": "never"}),
        (3, 20, {"length_penalty": -1.0, "early_stopping": "never"}),
        (5, 16, {"early_stopping": True}),
    ],
)
def test_texts_and_scores_are_those_of_transformers(rule: str, beams: int, new: int, settings: dict[str, Any]) -> None:
    decoder, prompts = tiny_decoder(), ragged_prompts(6)
    results = decoder.generate_beams(prompts, beams, new, depth=3, rule=rule, batch_size=4, **settings)
    if beams == 1:  # where transformers decodes greedily, without scores
        assert [r.tokens for r in results] == [r.tokens for r in decoder.generate(prompts, new, rule="target")]
        return
    for prompt, result in zip(prompts, results, strict=True):
        assert_same(result, texts_of_transformers(decoder, prompt, beams, new, **settings))


@pytest.mark.parametrize("rule", ["target", "coupled"])
def test_so_they_are_where_most_tokens_end_a_text(rule: str) -> None:
    decoder, prompts = tiny_decoder(), ragged_prompts(8)
    decoder.target.generation_config.eos_token_id = list(range(36))
    results = decoder.generate_beams(prompts, 5, 10, depth=2, rule=rule, length_penalty=3.0)
    for prompt, result in zip(prompts, results, strict=True):
        assert_same(result, texts_of_transformers(decoder, prompt, 5, 10, length_penalty=3.0))


@cache
def bundled() -> tuple[SpeculativeDecoder, list[list[int]]]:
    decoder = SpeculativeDecoder.from_pretrained(*pair_paths())
    prompts = [problem.prompt for problem in load_task("arithmetic", seed=9, limit=2).problems]
    return decoder, [list(decoder.tokenizer(prompt)["input_ids"]) for prompt in prompts]


@pytest.mark.parametrize("rule", ["target", "coupled"])
def test_so_are_those_of_the_bundled_pair(rule: str) -> None:
    decoder, prompts = bundled()
    results = decoder.generate_beams(prompts, 3, 40, rule=rule, batch_size=2)
    for prompt, result in zip(prompts, results, strict=True):
        assert_same(result, texts_of_transformers(decoder, prompt, 3, 40))
    assert (sum(result.accepted for result in results) > 0) == (rule == "coupled")


def test_a_draft_that_is_the_target_is_accepted_whole() -> None:
    decoder = tiny_decoder()
    same = SpeculativeDecoder(decoder.target, decoder.target, decoder.tokenizer, rule="coupled")
    (result,) = same.generate_beams([[5, 6, 7]], 3, 12, depth=3, width=3)
    assert result.accepted == result.drafted
    assert result.rounds == 3  # of four tokens each
