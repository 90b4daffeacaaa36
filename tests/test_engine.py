"""Decoding whole texts: exact where it must be, the same in every batch, honest about its intervals.

Float64 on tiny random models, so that a verification and a single step agree to the last bit that matters.
"""

from __future__ import annotations

import math
from random import Random
from typing import Any

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
)

from fsd_decoding.decoder import Result, SpeculativeDecoder
from fsd_decoding.observing import RoundRecord
from tiny import EOS, VOCABULARY, llama, random_model, word_tokenizer

NEW = 24
LOSSLESS = ["sd", "coupled", "fsd", "fsd-sd", "fsd-coupled"]


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


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("draft_length", [1, 3, 8])
@pytest.mark.parametrize("rule", LOSSLESS)
def test_lossless_rules_give_the_targets_own_text(
    decoder: SpeculativeDecoder, prompts: list[list[int]], rule: str, draft_length: int, temperature: float
) -> None:
    if rule in ("sd", "fsd-sd") and temperature:
        pytest.skip("sampled sd keeps the distribution, not the text: see test_rules")
    alone = decoder.generate(prompts, NEW, temperature, rule="target")
    fuzzy = decoder.generate(
        prompts, NEW, temperature, rule=rule, threshold=-1e-9, draft_length=draft_length, batch_size=7
    )
    assert tokens(fuzzy) == tokens(alone)
    assert [r.finish_reason for r in fuzzy] == [r.finish_reason for r in alone]
    assert {r.finish_reason for r in alone} == {"eos", "length"}


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


SMALL: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64,
         "initializer_range": 0.3, "bos_token_id": None, "eos_token_id": list(EOS), "pad_token_id": 0}  # fmt: skip
FAMILIES = {
    "llama": LlamaConfig(**SMALL),
    "qwen2": Qwen2Config(**SMALL),
    "qwen3": Qwen3Config(**SMALL),
    "mistral with a window": MistralConfig(**SMALL, sliding_window=6),
    "gemma2": Gemma2Config(**SMALL, sliding_window=6),
    "gemma3": Gemma3TextConfig(**SMALL, sliding_window=6),
    "gpt2": GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=64,
                       bos_token_id=None, eos_token_id=list(EOS), pad_token_id=0, initializer_range=0.3),
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_families_decode_as_transformers_does(family: str, prompts: list[list[int]]) -> None:
    """Ragged rows, refills and rollback; windows of 6 are crossed by texts of up to 36 tokens."""
    model = random_model(FAMILIES[family], seed=3, spread=3.0)
    pair = SpeculativeDecoder(model, llama(seed=5, layers=1), word_tokenizer())
    found = pair.generate(prompts[:8], NEW, rule="coupled", draft_length=3, batch_size=3)
    assert tokens(found) == [generated(model, prompt) for prompt in prompts[:8]]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("rule", ["sd", "fsd", "fsd-sd", "fsd-coupled"])
def test_company_does_not_matter(
    decoder: SpeculativeDecoder, prompts: list[list[int]], rule: str, temperature: float
) -> None:
    """Alone, in a batch, after refills and in another order: the same text, rounds and interval."""

    def run(order: list[int], batch_size: int) -> dict[int, Result]:
        found = decoder.generate([prompts[i] for i in order], NEW, temperature, rule=rule, threshold=0.2,
                                 ids=order, batch_size=batch_size)  # fmt: skip
        return dict(zip(order, found, strict=True))

    forward = list(range(len(prompts)))
    together = run(forward, 40)
    for other in (run(forward, 1), run(forward[::-1], 6)):
        for i in forward:
            assert other[i].tokens == together[i].tokens
            assert other[i].rounds == together[i].rounds
            assert other[i].interval == pytest.approx(together[i].interval, abs=1e-9)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("rule", ["fsd", "fsd-sd", "fsd-coupled"])
def test_interval_holds_the_thresholds_that_give_this_text(
    decoder: SpeculativeDecoder, prompts: list[list[int]], rule: str, temperature: float
) -> None:
    """Inside [lo, hi) nothing changes; at its ends the decision that bounds it flips."""
    threshold = 0.2

    def run(thresholds: list[float]) -> list[Result]:
        return decoder.generate(prompts, NEW, temperature, rule=rule, threshold=thresholds, draft_length=4)

    base = run([threshold] * len(prompts))
    rng = Random(1)
    for _ in range(3):
        inside = run([rng.uniform(max(r.interval[0], -0.1), min(r.interval[1], 0.69)) for r in base])
        assert tokens(inside) == tokens(base)
        assert [r.rounds for r in inside] == [r.rounds for r in base]
    below = run([r.interval[0] - 1e-9 for r in base])
    above = run([r.interval[1] for r in base])
    for was, low, high in zip(base, below, above, strict=True):
        assert was.interval[0] <= threshold < was.interval[1]
        if math.isfinite(was.interval[0]):
            assert low.interval[1] == pytest.approx(was.interval[0], abs=1e-12)
        if math.isfinite(was.interval[1]):
            assert high.interval[0] >= was.interval[1] - 1e-12
    for end in (0, 1):  # the loop above saw enough of both ends
        assert sum(math.isfinite(r.interval[end]) for r in base) > 10


def test_everything_is_accepted_without_a_threshold(decoder: SpeculativeDecoder, prompts: list[list[int]]) -> None:
    """`fsd` at T = ∞: the draft's own tokens but for one bonus a round."""
    for result in decoder.generate(prompts, NEW, rule="fsd", threshold=math.inf, draft_length=4):
        written = result.emitted
        assert result.accepted == written - written // 5
        assert result.rounds == math.ceil(written / 5)


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
    for pair, context in ((decoder, 128), (learned, 64)):
        cut = [prompt[-context + 8 :] for prompt in prompts]
        for rule in ("target", "fsd-coupled"):
            crowded, free = pair.generate(cut, NEW, rule=rule, threshold=0.3, draft_length=6)
            assert len(crowded.tokens) == 8 or crowded.finish_reason == "eos"
            alone = pair.generate(cut[1:], NEW, rule=rule, threshold=0.3, draft_length=6, ids=[1])[0]
            assert free.tokens == alone.tokens


def test_padding_of_the_vocabulary_is_never_emitted(prompts: list[list[int]]) -> None:
    wide, narrow = llama(seed=1, layers=2, vocab_size=VOCABULARY + 24), llama(seed=2, layers=1)
    pair = SpeculativeDecoder(wide, narrow, word_tokenizer())
    for rule in ("target", "sd", "fsd-coupled"):
        found = pair.generate(prompts, NEW, 1.5, rule=rule, threshold=0.3)
        assert all(t < VOCABULARY for r in found for t in r.tokens)
