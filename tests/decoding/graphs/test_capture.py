"""Rounds captured and replayed, on a tape instead of a GPU: the same texts, and nothing captured twice."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fsd_collectors.collection.hidden_states import HiddenStates
from fsd_decoding.acceptance.rules import RULES
from fsd_decoding.adaptive import EntropyScaled
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.drafters.ngram import NGram
from fsd_decoding.engine import kv_pool
from fsd_decoding.errors import UsageError
from fsd_decoding.observers.round_record import RoundRecord
from lib.gpu.tape import Tape
from support.captured_decoders import NEW, PROMPTS, assert_same_results, captured_copy, count_graphs
from support.stop_policies import Unsure
from support.tiny_pair import tiny_decoder


@pytest.fixture(autouse=True)
def on_tape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(kv_pool.CAPTURES, "cpu", lambda device: Tape())


@pytest.fixture(scope="module")
def plain() -> SpeculativeDecoder:
    return tiny_decoder()


@pytest.fixture
def captured(plain: SpeculativeDecoder) -> SpeculativeDecoder:
    return captured_copy(plain)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("rule", RULES)
def test_replayed_rounds_give_the_same_results(
    captured: SpeculativeDecoder, plain: SpeculativeDecoder, rule: str, temperature: float
) -> None:
    """With refills, through several reaches, and again in the room they left."""
    for _ in range(2):
        assert_same_results(captured, plain, temperature, rule=rule)
    assert count_graphs(captured) > 1


def test_with_processed_logits(captured: SpeculativeDecoder, plain: SpeculativeDecoder) -> None:
    for _ in range(2):
        assert_same_results(captured, plain, 0.8, top_k=9, top_p=0.9, min_p=0.01, repetition_penalty=1.2)
    assert count_graphs(captured) > 1


def test_other_texts_thresholds_seeds_and_ids_capture_nothing(
    captured: SpeculativeDecoder, plain: SpeculativeDecoder
) -> None:
    for _ in range(2):
        assert_same_results(captured, plain, 0.8)
    made = count_graphs(captured)
    captured.seed = plain.seed = 3
    try:
        assert_same_results(
            captured, plain, 0.8, threshold=[0.1, -1.0, 0.3, 9.0, 0.0, 0.2, 0.4, 0.5, 0.1], ids=range(5, 14)
        )
    finally:
        plain.seed = 0
    assert count_graphs(captured) == made


def test_under_a_stop_policy(captured: SpeculativeDecoder, plain: SpeculativeDecoder) -> None:
    for _ in range(2):
        assert_same_results(captured, plain, 0.8, policy=Unsure(), draft_length=5)
        assert_same_results(captured, plain, rule="coupled", policy=Unsure(), draft_length=5)


def test_a_policy_that_watches_the_draft_sees_every_step(
    captured: SpeculativeDecoder, plain: SpeculativeDecoder
) -> None:
    class Watching(Unsure):
        watches = True

    for _ in range(2):
        seen: list[int] = []
        hook = plain.draft.get_output_embeddings().register_forward_pre_hook(lambda *_, to=seen: to.append(1))
        try:
            found = captured.generate(PROMPTS[:1], NEW, policy=Watching())
        finally:
            hook.remove()
        assert len(seen) >= found[0].drafted


def test_hidden_states_are_kept_of_uncaptured_drafts_only(captured: SpeculativeDecoder) -> None:
    """A hook sees nothing of a replay."""
    with (
        HiddenStates(captured.draft, 4, seed=0),
        pytest.raises(UsageError, match="of eager drafts only; decode with compile=False"),
    ):
        captured.generate(PROMPTS[:1], NEW)


def test_what_an_observer_keeps_stays_what_it_was(captured: SpeculativeDecoder, plain: SpeculativeDecoder) -> None:
    seen: list[list[RoundRecord]] = [[], []]
    for decoder, to in zip((plain, captured), seen, strict=True):
        for _ in range(2):
            decoder.generate(PROMPTS[:1], NEW, rule="fsd", draft_length=3, observer=to.append)
    for a, b in zip(*seen, strict=True):
        for name in ("js", "tv"):
            assert torch.equal(a.divergences([name])[name], b.divergences([name])[name])
        assert torch.equal(a.proposal.target_logits, b.proposal.target_logits)
        assert torch.equal(a.proposal.drafted, b.proposal.drafted)
        assert torch.equal(a.accepted, b.accepted)


def test_where_a_policy_moves_t(captured: SpeculativeDecoder, plain: SpeculativeDecoder) -> None:
    for _ in range(2):
        assert_same_results(captured, plain, threshold=EntropyScaled(0.2, slope=2.0))


def test_without_a_draft_model(plain: SpeculativeDecoder) -> None:
    ours, theirs = captured_copy(plain, NGram()), SpeculativeDecoder(plain.target, NGram(), plain.tokenizer)
    for _ in range(2):
        assert_same_results(ours, theirs)


def test_a_model_that_looks_at_values_is_called_as_it_is_and_that_is_said(plain: SpeculativeDecoder) -> None:
    ours = captured_copy(plain)

    def look(module: Any, args: Any, out: Tensor) -> None:
        out.amax().item()

    hook = plain.target.get_input_embeddings().register_forward_hook(look)
    try:
        with pytest.warns(UserWarning, match="verify cannot be captured, so that rounds are slower: aten.*waits for"):
            assert_same_results(ours, plain)
    finally:
        hook.remove()
    assert count_graphs(ours) > 0  # the draft's steps, and what judges
