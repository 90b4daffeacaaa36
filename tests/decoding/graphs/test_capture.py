"""Captured and replayed rounds, on a simulated device: the same texts, and nothing captured twice."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fsd_collectors.collection.measures import HiddenStates
from fsd_common.errors import UsageError
from fsd_decoding.adaptive import EntropyScaled
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.drafters.ngram import NGram
from fsd_decoding.engine import cache_pool
from fsd_decoding.observers.round_record import RoundRecord
from fsd_decoding.rules import RULES
from fsd_decoding.tree_shape import TreeShape
from lib.gpu.tape import Tape
from support.models.captured_decoders import NEW, PROMPTS, assert_same_results, captured_copy, count_graphs
from support.models.stop_policies import Unsure
from support.models.tiny_heads import eagle1, eagle3
from support.models.tiny_models import llama
from support.models.tiny_pair import tiny_decoder


@pytest.fixture(autouse=True)
def on_tape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cache_pool.CAPTURES, "cpu", Tape)


@pytest.fixture(scope="module")
def plain() -> SpeculativeDecoder:
    return tiny_decoder()


@pytest.fixture
def captured(plain: SpeculativeDecoder) -> SpeculativeDecoder:
    return captured_copy(plain)


@pytest.mark.thinned(every=9)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("rule", RULES)
def test_replayed_rounds_give_the_same_results(
    captured: SpeculativeDecoder, plain: SpeculativeDecoder, rule: str, temperature: float
) -> None:
    """With refills, at several reaches, and again in reused caches."""
    for _ in range(2):
        assert_same_results(captured, plain, temperature, rule=rule)
    assert count_graphs(captured) > 1


@pytest.mark.slow
def test_with_processed_logits(captured: SpeculativeDecoder, plain: SpeculativeDecoder) -> None:
    for _ in range(2):
        assert_same_results(captured, plain, 0.8, top_k=9, top_p=0.9, min_p=0.01, repetition_penalty=1.2)
    assert count_graphs(captured) > 1


@pytest.mark.slow
def test_other_texts_thresholds_seeds_and_ids_capture_nothing(
    captured: SpeculativeDecoder, plain: SpeculativeDecoder
) -> None:
    for _ in range(2):
        assert_same_results(captured, plain, 0.8)
    captured_before = count_graphs(captured)
    thresholds = [0.1, -1.0, 0.3, 9.0, 0.0, 0.2, 0.4, 0.5, 0.1]
    assert_same_results(captured, plain, 0.8, threshold=thresholds, ids=range(5, 14), seed=3)
    assert count_graphs(captured) == captured_before


def test_under_a_stop_policy(captured: SpeculativeDecoder, plain: SpeculativeDecoder) -> None:
    for _ in range(2):
        assert_same_results(captured, plain, 0.8, stop_policy=Unsure(), draft_length=5)
        assert_same_results(captured, plain, rule="coupled", stop_policy=Unsure(), draft_length=5)


def test_a_policy_that_watches_the_draft_sees_every_step(
    captured: SpeculativeDecoder, plain: SpeculativeDecoder
) -> None:
    class Watching(Unsure):
        watches = True

    for _ in range(2):
        forwards: list[int] = []
        hook = plain.draft.get_output_embeddings().register_forward_pre_hook(lambda *_, to=forwards: to.append(1))
        try:
            actual = captured.generate(PROMPTS[:1], NEW, stop_policy=Watching())
        finally:
            hook.remove()
        assert len(forwards) >= actual[0].drafted


def test_hidden_states_are_kept_of_uncaptured_drafts_only(captured: SpeculativeDecoder) -> None:
    """A replay runs no hooks."""
    with (
        HiddenStates(captured.draft, 4, seed=0),
        pytest.raises(UsageError, match="of eager drafts only; decode with compile=False"),
    ):
        captured.generate(PROMPTS[:1], NEW)


def test_tensors_that_an_observer_keeps_do_not_change(captured: SpeculativeDecoder, plain: SpeculativeDecoder) -> None:
    records: list[list[RoundRecord]] = [[], []]
    for decoder, to in zip((plain, captured), records, strict=True):
        for _ in range(2):
            decoder.generate(PROMPTS[:1], NEW, rule="fsd", draft_length=3, observer=to.append)
    for a, b in zip(*records, strict=True):
        for name in ("js", "tv"):
            assert torch.equal(a.scores([name])[name], b.scores([name])[name])
        assert torch.equal(a.proposal.target_logits, b.proposal.target_logits)
        assert torch.equal(a.proposal.drafted, b.proposal.drafted)
        assert torch.equal(a.accepted, b.accepted)


@pytest.mark.slow
def test_under_a_threshold_policy(captured: SpeculativeDecoder, plain: SpeculativeDecoder) -> None:
    for _ in range(2):
        assert_same_results(captured, plain, threshold=EntropyScaled(0.2, slope=2.0))


@pytest.mark.slow
def test_without_a_draft_model(plain: SpeculativeDecoder) -> None:
    ours, theirs = captured_copy(plain, NGram()), SpeculativeDecoder(plain.target, NGram(), plain.tokenizer)
    for _ in range(2):
        assert_same_results(ours, theirs)


@pytest.mark.slow
def test_with_an_eagle_head(plain: SpeculativeDecoder) -> None:
    """Chains, chains that a policy ends step by step, and trees."""
    target = llama(seed=0, layers=8)
    for head in (eagle1(target), eagle3(target)):
        theirs = SpeculativeDecoder(target, head, plain.tokenizer)
        ours = captured_copy(theirs)
        for settings in ({}, {"stop_policy": Unsure()}):
            for _ in range(2):
                assert_same_results(ours, theirs, 0.8, rule="fsd-coupled", **settings)
        for _ in range(2):
            trees = [decoder.with_config(tree=TreeShape(2, 5)) for decoder in (ours, theirs)]
            assert_same_results(trees[0], trees[1], 0.8, rule="fsd-coupled")
        assert count_graphs(ours) > 3


def test_a_model_that_reads_values_is_called_directly_with_a_warning(plain: SpeculativeDecoder) -> None:
    ours = captured_copy(plain)

    def read_value(module: Any, args: Any, out: Tensor) -> None:
        out.amax().item()

    hook = plain.target.get_input_embeddings().register_forward_hook(read_value)
    try:
        with pytest.warns(UserWarning, match="step .verify. cannot be captured as a graph, .*: aten.*waits for"):
            assert_same_results(ours, plain)
    finally:
        hook.remove()
    assert count_graphs(ours) > 0  # the draft's steps and the judgement
