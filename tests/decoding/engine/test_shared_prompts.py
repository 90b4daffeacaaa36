"""How prompts get into the caches: what they share is read once, with equal texts, and the rest with other work."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch

from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.observers.round_record import RoundRecord
from support.models.shared_prompts import alone, counted, worked
from support.models.tiny_models import VOCABULARY, llama, word_tokenizer
from support.models.tiny_pair import ragged_prompts, tiny_decoder

NEW = 12


def subjects() -> list[list[int]]:
    """Prompts of two tasks in turn, with short ones between that share nothing."""
    one, other, alone = worked(6, 50, 1), worked(6, 40, 2), ragged_prompts(3)
    return [prompt for pair in zip(one, other, strict=True) for prompt in pair] + alone


CASES = {
    "all share": worked(9, 60),
    "two tasks and others": subjects(),
    "one within another": [worked(1, 40)[0][:n] for n in (40, 41, 18, 43, 42)],
    "the same": worked(1, 40) * 5,
    "nothing in common": ragged_prompts(7),
}


@pytest.mark.parametrize("lean", [True, False])
@pytest.mark.parametrize("rows", [1, 3, 16])
@pytest.mark.parametrize("case", CASES)
def test_texts_are_those_of_prompts_alone(case: str, rows: int, lean: bool) -> None:
    decoder = tiny_decoder(lean=lean)
    settings: dict[str, Any] = {"rule": "fsd-coupled", "threshold": 0.1, "draft_length": 3, "temperature": 0.7}
    found = decoder.generate(CASES[case], NEW, batch_size=rows, **settings)
    assert [result.tokens for result in found] == alone(decoder, CASES[case], NEW, **settings)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_captured_rounds_read_the_same(case: str) -> None:
    found = tiny_decoder(compile="capture").generate(CASES[case], NEW, batch_size=3, rule="coupled")
    assert [result.tokens for result in found] == alone(tiny_decoder(), CASES[case], NEW, rule="coupled")


def test_what_prompts_share_is_read_once_by_both_models() -> None:
    prompts = worked(8, 60)
    decoder = tiny_decoder()
    with counted() as passes:
        decoder.generate(prompts, 1, batch_size=8, rule="coupled", draft_length=1)
    own = sum(len(prompt) - 60 for prompt in prompts)
    padded = 8 * (max(map(len, prompts)) - 60)
    for model in (decoder.target, decoder.draft):
        assert 60 + own <= sum(passes[id(model)]) <= 60 + padded + 3 * 8


def test_a_later_prompt_begins_with_what_a_row_holds() -> None:
    prompts = worked(6, 60)
    decoder = tiny_decoder()
    with counted() as passes:
        decoder.generate(prompts, 1, batch_size=1, rule="coupled", draft_length=1)
    own = sum(len(prompt) - 60 for prompt in prompts)
    assert sum(passes[id(decoder.target)]) <= 60 + own + 3 * 6


def test_new_prompts_are_read_together_with_the_next_tokens() -> None:
    """Of both models: a refill makes no forward pass of its own."""
    decoder, rounds = tiny_decoder(), list[int]()

    def observe(record: RoundRecord) -> None:
        rounds.append(record.proposal.drafted.shape[1])

    with counted() as passes:
        decoder.generate(ragged_prompts(9), NEW, batch_size=3, rule="coupled", draft_length=2, observer=observe)
    assert len(passes[id(decoder.target)]) == len(rounds)
    assert len(passes[id(decoder.draft)]) == sum(rounds)


def test_prompts_longer_than_a_chunk_are_read_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fsd_decoding.models.runner.PREFILL_CHUNK", 8)
    decoder = tiny_decoder()
    prompts = [*worked(3, 30), *worked(2, 50, seed=4)]
    found = decoder.generate(prompts, NEW, batch_size=4, rule="coupled")
    monkeypatch.undo()
    assert [result.tokens for result in found] == alone(decoder, prompts, NEW, rule="coupled")


def test_a_row_that_moves_is_still_found() -> None:
    """Rows are renumbered as others end; later prompts begin with what the moved ones hold."""
    prompts = worked(14, 40)
    decoder = tiny_decoder()
    limits = [1, NEW, 2, NEW, 3, 5, 1, 1, NEW, 2, 4, 6, 1, 2]
    engine_rows = decoder.requests(prompts, NEW)
    requests = [
        request.__class__(**vars(request) | {"max_new_tokens": n})
        for request, n in zip(engine_rows, limits, strict=True)
    ]
    settings = decoder.settings()
    rows = {row.request.index: row.tokens for row in decoder.engine(settings, requests, 5).run(requests)}
    for request in requests:
        (row,) = decoder.engine(settings, [request], 1).run([request])
        assert rows[request.index] == row.tokens


def test_the_drafts_context_does_not_end_a_text() -> None:
    """Beyond it nothing is drafted, and the text is the target's own."""
    target, draft = llama(seed=1), llama(seed=1, max_position_embeddings=24)
    decoder = SpeculativeDecoder(target, draft, word_tokenizer())
    for rows in (1, 3):
        prompts = [prompt * 2 for prompt in ragged_prompts(5)] + [[5] * 40]
        found = decoder.generate(prompts, 40, batch_size=rows, rule="coupled", draft_length=4)
        assert [each.tokens for each in found] == [each.tokens for each in decoder.generate(prompts, 40, rule="target")]
        for prompt, result in zip(prompts, found, strict=True):
            drafting = max(min(len(prompt) + result.emitted, 24) - len(prompt), 0)
            assert result.drafted <= 4 * drafting
        assert found[-1].drafted == 0


def test_a_prompt_that_no_draft_was_made_of_is_still_a_source() -> None:
    """Both prompts of the first round are beyond the draft's context, so it reads neither before they are copied."""
    rng = Random(0)
    first, other = ([rng.randrange(2, VOCABULARY) for _ in range(50)] for _ in range(2))
    for lean in (True, False):
        pair = llama(seed=1), llama(seed=2, max_position_embeddings=40)
        settings: dict[str, Any] = {"rule": "fsd-coupled", "threshold": 0.5, "draft_length": 3}
        decoder = SpeculativeDecoder(*pair, word_tokenizer(), temperature=0.7, lean=lean, **settings)
        requests = decoder.requests([first, other, [*first[:24], 7]], 10)
        requests[1] = replace(requests[1], max_new_tokens=1)
        together = list(decoder.engine(decoder.settings(), requests, 2).run(requests))
        for row in together:
            (one,) = decoder.engine(decoder.settings(), [row.request], 1).run([row.request])
            assert (one.tokens, one.drafted, one.accepted) == (row.tokens, row.drafted, row.accepted)


def test_a_draft_is_not_longer_than_the_text_may_be() -> None:
    decoder = tiny_decoder()
    for most in (1, 2, 5):
        for result in decoder.generate(ragged_prompts(6), most, rule="fsd-coupled", threshold=10.0, draft_length=8):
            assert result.drafted <= most * result.rounds
            assert result.rounds == 1 or result.finish_reason != "length"


def test_the_batch_does_not_change_how_much_is_drafted() -> None:
    decoder = tiny_decoder()
    prompts = ragged_prompts(6)
    together = decoder.generate(prompts, NEW, rule="coupled", draft_length=4)
    apart = [
        decoder.generate([prompt], NEW, ids=[i], rule="coupled", draft_length=4)[0] for i, prompt in enumerate(prompts)
    ]
    assert together == apart


def test_half_precision_pairs_read_shared_prompts_too() -> None:
    """Their texts may differ by rounding; each is whole."""
    decoder = tiny_decoder()
    decoder.target.to(torch.bfloat16)
    decoder.draft.to(torch.bfloat16)
    found = decoder.generate(worked(5, 60), NEW, batch_size=2, rule="coupled")
    assert all(result.emitted == NEW or result.finish_reason == "eos" for result in found)
