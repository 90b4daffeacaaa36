"""Decoding of whole texts, compared with transformers: tokens, counts and ends.

Tiny random models in float64, so that differences in rounding between a verification and a single step do not matter.
"""

from __future__ import annotations

import pytest
import torch

from fsd_common.errors import UsageError
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.engine.result import Result
from fsd_decoding.observers.round_record import RoundRecord
from support.models.tiny_models import CONTEXT, EOS, FAMILIES, llama, random_model, word_tokenizer
from support.models.tiny_pair import ragged_prompts, tiny_decoder

NEW = 24


@pytest.fixture(scope="module")
def decoder() -> SpeculativeDecoder:
    return tiny_decoder()


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    return ragged_prompts(20)


def tokens(results: list[Result]) -> list[list[int]]:
    return [result.tokens for result in results]


def test_greedy_target_only_decoding_equals_transformers_generate(
    decoder: SpeculativeDecoder, prompts: list[list[int]]
) -> None:
    actual = decoder.generate(prompts, NEW, rule="target")
    for prompt, result in zip(prompts, actual, strict=True):
        assert result.tokens == generate_with_transformers(decoder.target, prompt)


def generate_with_transformers(model: torch.nn.Module, prompt: list[int]) -> list[int]:
    ids = torch.tensor([prompt])
    mask = torch.ones_like(ids)
    out = model.generate(ids, attention_mask=mask, max_new_tokens=NEW, do_sample=False)  # type: ignore[operator]
    written: list[int] = out[0, len(prompt) :].tolist()
    return written[: next((i for i, t in enumerate(written) if t in EOS), len(written))]


@pytest.mark.thinned(every=10)
@pytest.mark.parametrize("family", FAMILIES)
def test_model_families_decode_as_in_transformers(family: str, prompts: list[list[int]]) -> None:
    """With ragged rows, refills and rollback; sliding windows of 6 tokens on texts of up to 36."""
    model = random_model(FAMILIES[family], seed=3, spread=3.0)
    pair = SpeculativeDecoder(model, llama(seed=5, layers=1), word_tokenizer())
    actual = pair.generate(prompts[:8], NEW, rule="coupled", draft_length=3, batch_size=3)
    assert tokens(actual) == [generate_with_transformers(model, prompt) for prompt in prompts[:8]]


def test_counts_add_up(decoder: SpeculativeDecoder, prompts: list[list[int]]) -> None:
    for r in decoder.generate(prompts, NEW, rule="fsd-coupled", threshold=0.2, draft_length=4):
        assert len(r.tokens) <= NEW
        assert r.accepted <= r.drafted <= 4 * r.rounds
        assert r.drafted == 4 * r.rounds or r.emitted > NEW - 4
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
        assert round_.proposal.scores.shape == round_.decided.shape
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
    """128 positions, learned embeddings included: no position beyond the last is fed."""
    prompts = [[5] * 120, [7, 9]]
    learned = SpeculativeDecoder(random_model(FAMILIES["gpt2"], seed=3), decoder.draft, word_tokenizer())
    for pair, context in ((decoder, 128), (learned, CONTEXT)):
        cut = [prompt[-context + 8 :] for prompt in prompts]
        for rule in ("target", "fsd-coupled"):
            crowded, free = pair.generate(cut, NEW, rule=rule, threshold=0.3, draft_length=6)
            assert len(crowded.tokens) == 8 or crowded.finish_reason == "eos"
            alone = pair.generate(cut[1:], NEW, rule=rule, threshold=0.3, draft_length=6, ids=[1])[0]
            assert free.tokens == alone.tokens


@pytest.mark.parametrize("widths", [(640, 512), (512, 640)], ids=str)
def test_vocabularies_padded_to_different_widths_use_their_common_part(widths: tuple[int, int]) -> None:
    """As Qwen2.5's 7B and 0.5B do. The wider model's largest logit is always that of a padding token."""
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


PLACES = [(30, 12, [1, 30]), (30, 32, [1, 8]), (27, 32, [1, 8]), (29, 32, [2, 5]), (28, 32, [2, 6])]


@pytest.mark.thinned(every=5)
@pytest.mark.parametrize(("prompt", "new", "lengths"), PLACES, ids=str)
def test_different_draft_lengths_leave_slots_for_every_prompt(prompt: int, new: int, lengths: list[int]) -> None:
    """A row at its maximum length beside one that drafts more tokens than the full row has slots left."""
    pair = tiny_decoder()
    pair.target.generation_config.eos_token_id = []
    prompts, thresholds = [[5] * prompt, [7] * 3], [9.0, -1.0]
    together = pair.generate(prompts, new, rule="fsd", draft_length=lengths, threshold=thresholds)
    for i, result in enumerate(together):
        alone = pair.generate([prompts[i]], new, rule="fsd", draft_length=lengths[i], threshold=thresholds[i], ids=[i])[
            0
        ]
        assert (result.tokens, result.finish_reason) == (alone.tokens, "length")


@pytest.mark.parametrize("length", [128, 1000, [3, 128]], ids=str)
def test_a_draft_longer_than_the_context_is_refused(decoder: SpeculativeDecoder, length: int | list[int]) -> None:
    with pytest.raises(UsageError, match="must be less than the target's context, 128"):
        decoder.generate([[5], [6]], NEW, draft_length=length)


def test_a_prompt_is_begun_when_a_row_is_free_unless_it_is_refused(
    decoder: SpeculativeDecoder, prompts: list[list[int]]
) -> None:
    """With the texts it has anyway."""
    asked, finished, ahead = list[int](), list[int](), list[int]()

    def begin(index: int) -> bool:
        asked.append(index)
        ahead.append(sum(i % 3 > 0 for i in asked) - len(finished))
        return index % 3 > 0

    results = decoder.generate(
        prompts, NEW, batch_size=4, begin=begin, on_finish=lambda index, result: finished.append(index)
    )
    kept = [i for i in range(len(prompts)) if i % 3 > 0]
    whole = tokens(decoder.generate(prompts, NEW, batch_size=4))
    assert asked == list(range(len(prompts)))
    assert sorted(finished) == kept
    assert tokens(results) == [whole[i] for i in kept]
    assert max(ahead) <= 4
    assert decoder.generate(prompts, NEW, begin=lambda index: False) == []
