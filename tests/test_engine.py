"""Decoding whole texts: what transformers would write, well counted, and ended where they should be.

Float64 on tiny random models, so that a verification and a single step agree to the last bit that matters.
"""

from __future__ import annotations

import math
from random import Random

import pytest
import torch

from fsd_decoding.decoder import Result, SpeculativeDecoder
from fsd_decoding.errors import NumericalError, UsageError
from fsd_decoding.observing import RoundRecord
from tiny import CONTEXT, EOS, FAMILIES, VOCABULARY, llama, random_model, word_tokenizer

NEW = 24


@pytest.fixture(scope="module")
def decoder() -> SpeculativeDecoder:
    target, draft = llama(seed=1), llama(seed=1)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():  # a draft that agrees about as often as not
        for weight in draft.parameters():
            weight.mul_(1 + 0.05 * torch.randn(weight.shape, generator=generator, dtype=weight.dtype))
    return SpeculativeDecoder(target, draft, word_tokenizer())


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = Random(0)
    return [[rng.randrange(2, VOCABULARY) for _ in range(rng.randint(1, 12))] for _ in range(40)]


def tokens(results: list[Result]) -> list[list[int]]:
    return [result.tokens for result in results]


def test_greedy_target_alone_is_what_transformers_generates(
    decoder: SpeculativeDecoder, prompts: list[list[int]]
) -> None:
    found = decoder.generate(prompts, NEW, rule="target")
    for prompt, result in zip(prompts, found, strict=True):
        assert result.tokens == generated(decoder.target, prompt)


def generated(model: torch.nn.Module, prompt: list[int]) -> list[int]:
    ids = torch.tensor([prompt])
    mask = torch.ones_like(ids)
    out = model.generate(ids, attention_mask=mask, max_new_tokens=NEW, do_sample=False)  # type: ignore[operator]
    written: list[int] = out[0, len(prompt) :].tolist()
    return written[: next((i for i, t in enumerate(written) if t in EOS), len(written))]


@pytest.mark.parametrize("family", FAMILIES)
def test_families_decode_as_transformers_does(family: str, prompts: list[list[int]]) -> None:
    """Ragged rows, refills and rollback; windows of 6 are crossed by texts of up to 36 tokens."""
    model = random_model(FAMILIES[family], seed=3, spread=3.0)
    pair = SpeculativeDecoder(model, llama(seed=5, layers=1), word_tokenizer())
    found = pair.generate(prompts[:8], NEW, rule="coupled", draft_length=3, batch_size=3)
    assert tokens(found) == [generated(model, prompt) for prompt in prompts[:8]]


def test_counts_add_up(decoder: SpeculativeDecoder, prompts: list[list[int]]) -> None:
    for r in decoder.generate(prompts, NEW, rule="fsd-coupled", threshold=0.2, draft_length=4):
        assert len(r.tokens) <= NEW
        assert r.accepted <= r.drafted == 4 * r.rounds
        assert r.emitted <= r.accepted + r.rounds
        assert (r.finish_reason == "length") == (len(r.tokens) == NEW)
        assert not set(EOS) & set(r.tokens)


def test_thresholds_may_differ_by_prompt(decoder: SpeculativeDecoder, prompts: list[list[int]]) -> None:
    wild = decoder.generate(prompts, NEW, threshold=9.0)
    strict = decoder.generate(prompts, NEW, threshold=-1.0)
    mixed = decoder.generate(prompts, NEW, threshold=[9.0, -1.0] * (len(prompts) // 2))
    assert tokens(mixed)[::2] == tokens(wild)[::2]
    assert tokens(mixed)[1::2] == tokens(strict)[1::2]


def test_observer_sees_every_decision_once(decoder: SpeculativeDecoder, prompts: list[list[int]]) -> None:
    decided = 0

    def observe(round_: RoundRecord) -> None:
        nonlocal decided
        assert round_.proposal.divergences.shape == round_.decided.shape
        decided += int(round_.decided.sum())

    results = decoder.generate(prompts, NEW, rule="coupled", batch_size=6, observer=observe)
    emitted = sum(r.emitted for r in results)
    assert emitted - sum(r.rounds for r in results) <= decided <= sum(r.drafted for r in results)


def test_stop_strings_end_a_text_before_them(decoder: SpeculativeDecoder, prompts: list[list[int]]) -> None:
    free = decoder.generate(prompts, NEW, rule="target")
    word = free[0].text.split()[2]
    for free_run, result in zip(free, decoder.generate(prompts, NEW, threshold=-1, stop=[word]), strict=True):
        assert result.text == free_run.text.split(word)[0]
        assert (result.finish_reason == "stop") == (word in free_run.text)


def test_texts_and_token_ids_are_the_same_prompt(decoder: SpeculativeDecoder) -> None:
    by_text, by_ids = (decoder.generate([p], NEW)[0] for p in ("w5 w9 w2", [5, 9, 2]))
    assert by_text == by_ids


def test_a_text_ends_with_the_context(decoder: SpeculativeDecoder) -> None:
    """128 positions, learned ones as well: nothing is fed beyond the last."""
    prompts = [[5] * 120, [7, 9]]
    learned = SpeculativeDecoder(random_model(FAMILIES["gpt2"], seed=3), decoder.draft, word_tokenizer())
    for pair, context in ((decoder, 128), (learned, CONTEXT)):
        cut = [prompt[-context + 8 :] for prompt in prompts]
        for rule in ("target", "fsd-coupled"):
            crowded, free = pair.generate(cut, NEW, rule=rule, threshold=0.3, draft_length=6)
            assert len(crowded.tokens) == 8 or crowded.finish_reason == "eos"
            alone = pair.generate(cut[1:], NEW, rule=rule, threshold=0.3, draft_length=6, ids=[1])[0]
            assert free.tokens == alone.tokens


@pytest.mark.parametrize("widths", [(152064, 151936), (151936, 152064)], ids=str)
def test_vocabularies_padded_to_different_widths_decode_on_what_they_share(widths: tuple[int, int]) -> None:
    """Qwen2.5's 7B and 0.5B. The wider model would say a padding token at every turn, were it heard."""
    target, draft = llama(seed=1, layers=4, vocab_size=widths[0]), llama(seed=2, layers=1, vocab_size=widths[1])
    narrow = min(widths)
    with torch.no_grad():
        for model in (target, draft):
            model.lm_head.weight[narrow:] = 9 * model.lm_head.weight[: model.config.vocab_size - narrow]
    pair = SpeculativeDecoder(target, draft, word_tokenizer())
    prompt = [narrow - 1, 5, 77]
    logits = target(torch.tensor([prompt])).logits[0, -1]
    assert (logits.argmax() >= narrow) == (widths[0] > narrow)
    for temperature in (0.0, 1.0):
        alone = pair.generate([prompt], 6, temperature, rule="target")
        assert alone[0].tokens[0] == logits[:narrow].argmax() or temperature
        for rule in ("sd", "fsd-coupled") if not temperature else ("fsd-coupled",):
            assert pair.generate([prompt], 6, temperature, rule=rule, threshold=-1.0)[0].tokens == alone[0].tokens
        fuzzy = pair.generate([prompt], 6, temperature, threshold=9.0)[0].tokens
        assert all(token < narrow for token in fuzzy + alone[0].tokens)


@pytest.mark.parametrize("rule", ["target", "sd", "coupled", "fsd", "fsd-coupled"])
def test_broken_logits_stop_the_run_and_keep_what_is_done(prompts: list[list[int]], rule: str) -> None:
    """Token 39 stands only in the sixth prompt, and its embedding is NaN."""
    broken = llama(seed=1)
    with torch.no_grad():
        broken.model.embed_tokens.weight[39] = math.nan
    pair = SpeculativeDecoder(broken, llama(seed=2, layers=1), word_tokenizer())
    clean = [[t for t in prompt if t != 39] or [5] for prompt in prompts[:6]]
    clean[5].append(39)
    with pytest.raises(NumericalError, match=r"prompt 5 got logits that are NaN or \+inf in round 1") as caught:
        pair.generate(clean, 1, rule=rule, threshold=0.2, batch_size=1)
    assert sorted(caught.value.finished) == [0, 1, 2, 3, 4]


BAD_CALLS: list[tuple[str, dict[str, object]]] = [
    (r"prompts is \[\]", {"prompts": []}),
    ("prompts is 'w5'", {"prompts": "w5"}),
    ("prompt 1 is empty", {"prompts": [[5], []]}),
    ("prompt 1 has 128 tokens, the models' context is 128", {"prompts": [[5], [5] * 128]}),
    ("max_new_tokens is 0", {"max_new_tokens": 0}),
    ("draft_length is 0", {"draft_length": 0}),
    ("batch_size is 0", {"batch_size": 0}),
    ("threshold is NaN", {"threshold": math.nan}),
    ("threshold has 2 entries for 1 prompts", {"threshold": [0.1, 0.2]}),
    ("ids has 2 entries for 1 prompts", {"ids": [1, 2]}),
    ("unknown rule 'x'", {"rule": "x"}),
    ("temperature is -1", {"temperature": -1.0}),
    ("top_k is 0", {"temperature": 1.0, "top_k": 0}),
    ("top_k is 3 and top_p None at temperature 0", {"top_k": 3}),
    ("stop is 'ab'", {"stop": "ab"}),
    (r"stop is \[''\]", {"stop": [""]}),
    ("top_p is 2", {"temperature": 1.0, "top_p": 2.0}),
]


@pytest.mark.parametrize(("message", "call"), BAD_CALLS, ids=[m for m, _ in BAD_CALLS])
def test_bad_calls_are_named(decoder: SpeculativeDecoder, message: str, call: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=message):
        decoder.generate(**({"prompts": [[5]], "max_new_tokens": NEW} | call))  # type: ignore[arg-type]
