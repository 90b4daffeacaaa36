"""Rounds as compiled graphs: the same texts, no graph compiled twice, few of them, and none outlives its models."""

from __future__ import annotations

import gc
import warnings
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch

from fsd_common.errors import UsageError
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.drafters.ngram import NGram
from fsd_decoding.engine import cache_pool
from fsd_decoding.engine.result import Result
from fsd_decoding.graphs import callers
from fsd_decoding.graphs.callers import CompiledCaller
from fsd_decoding.observers.round_record import RoundRecord
from lib.gpu.tape import Tape
from support.models.captured_decoders import assert_same_results, captured_copy, count_graphs
from support.models.tiny_models import FAMILIES, random_model, word_tokenizer
from support.models.tiny_pair import ragged_prompts, related, tiny_decoder

NEW = 20
PROMPTS = ragged_prompts(6)


def with_compile(decoder: SpeculativeDecoder, compile: str | bool) -> SpeculativeDecoder:
    return SpeculativeDecoder(decoder.target, decoder.draft, decoder.tokenizer, compile=compile)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def plain() -> SpeculativeDecoder:
    return tiny_decoder()


@pytest.fixture(scope="module")
def captured(plain: SpeculativeDecoder) -> SpeculativeDecoder:
    return with_compile(plain, "capture")


def decode(decoder: SpeculativeDecoder, rule: str, temperature: float) -> list[Result]:
    return decoder.generate(PROMPTS, NEW, temperature, rule=rule, threshold=0.2, draft_length=3, batch_size=4)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("rule", ["target", "sd", "fsd", "fsd-coupled"])
def test_captured_rounds_give_the_same_results(
    plain: SpeculativeDecoder, captured: SpeculativeDecoder, rule: str, temperature: float
) -> None:
    """Kernels and their order are equal. Intervals may differ in rounding, because only an eager batch shrinks."""
    for ours, theirs in zip(decode(captured, rule, temperature), decode(plain, rule, temperature), strict=True):
        assert replace(ours, interval=(0.0, 0.0)) == replace(theirs, interval=(0.0, 0.0))
        assert ours.interval == pytest.approx(theirs.interval, rel=1e-9)


@pytest.mark.slow
def test_graphs_are_made_once(captured: SpeculativeDecoder) -> None:
    """Other prompts, thresholds, seeds and ids need no other graph."""
    graphs = captured._pool._call
    assert isinstance(graphs, CompiledCaller)
    decode(captured, "fsd-coupled", 0.8)
    compiled_before = len(graphs)
    torch._dynamo.utils.counters.clear()
    thresholds, ids = [0.1, -1.0, 0.3, 9.0], [5, 6, 7, 8]
    captured.generate(ragged_prompts(8)[4:], NEW, 0.8, threshold=thresholds, draft_length=3, ids=ids, seed=3)
    assert len(graphs) == compiled_before
    assert not torch._dynamo.utils.counters["stats"]  # nor did PyTorch compile anything


@pytest.mark.slow
def test_an_observer_sees_the_same_round(plain: SpeculativeDecoder, captured: SpeculativeDecoder) -> None:
    """To the last bit, while the batch keeps its size."""
    records: list[list[RoundRecord]] = [[], []]
    for decoder, to in zip((plain, captured), records, strict=True):
        decoder.generate(PROMPTS[:1], NEW, rule="sd", draft_length=3, observer=to.append)
    for a, b in zip(*records, strict=True):
        assert torch.equal(a.proposal.scores, b.proposal.scores)
        assert torch.equal(a.accepted, b.accepted)


@pytest.mark.slow
def test_compiled_kernels_give_the_same_texts(plain: SpeculativeDecoder) -> None:
    """Tiny models in float64, whose rounding is too small to change a choice."""
    compiled = with_compile(plain, True)
    for temperature in (0.0, 0.8):
        ours, theirs = (decode(d, "fsd-coupled", temperature) for d in (compiled, plain))
        assert [(r.tokens, r.rounds, r.accepted) for r in ours] == [(r.tokens, r.rounds, r.accepted) for r in theirs]


def test_compile_is_one_of_three(plain: SpeculativeDecoder) -> None:
    with pytest.raises(UsageError, match="compile is 'fast'; it must be False, 'capture' or True"):
        SpeculativeDecoder(plain.target, plain.draft, word_tokenizer(), compile="fast")  # type: ignore[arg-type]


@pytest.mark.slow
def test_compile_may_be_assigned_and_drops_graphs(plain: SpeculativeDecoder) -> None:
    decoder, expected = with_compile(plain, False), alone(plain)
    sharing = decoder.with_config(rule="target")
    torch._dynamo.utils.counters.clear()
    decoder.compile = "capture"
    assert sharing.compile == "capture"
    assert alone(sharing) == expected
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
    with pytest.raises(UsageError, match="compile is 'fast'; it must be False, 'capture' or True"):
        decoder.compile = "fast"  # type: ignore[assignment]
    decoder.compile = False
    torch._dynamo.utils.counters.clear()
    assert alone(sharing) == expected
    assert not torch._dynamo.utils.counters["stats"]


@pytest.mark.slow
def test_another_target_gets_graphs_of_its_own() -> None:
    """Two targets of equal shapes, one with a sliding window: the other's graph would run, and give wrong results."""
    first, other = random_model(FAMILIES["llama"], seed=3), random_model(FAMILIES["mistral"], seed=4)
    swapped = SpeculativeDecoder(first, NGram(), word_tokenizer(), compile="capture")
    expected = alone(SpeculativeDecoder(other, NGram(), word_tokenizer()))
    assert alone(swapped) != expected
    swapped.target = other
    assert alone(swapped) == expected


def alone(decoder: SpeculativeDecoder) -> list[list[int]]:
    return [r.tokens for r in decoder.generate(PROMPTS, NEW, rule="target")]


@pytest.fixture(params=["on tape", "compiled"])
def graphs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "on tape":
        monkeypatch.setitem(cache_pool.CAPTURES, "cpu", Tape)
    return str(request.param)


def decoded(target: Any, draft: Any) -> SpeculativeDecoder:
    decoder = SpeculativeDecoder(target, draft, word_tokenizer(), compile="capture", threshold=0.2)
    for _ in range(3):
        decoder.generate([[5, 6, 7]], 12)
    return decoder


@pytest.mark.thinned(every=2)
def test_models_are_freed_with_their_decoder(graphs: str) -> None:
    decoder = decoded(*related(seed=1, spread=0.05, layers=1))
    models = [weakref.ref(decoder.target), weakref.ref(decoder.draft)]
    assert all(model() is not None for model in models)
    del decoder
    gc.collect()
    assert [model() for model in models] == [None, None]


@pytest.mark.slow
def test_models_are_freed_where_their_decoder_goes_on_with_others(graphs: str) -> None:
    decoder = decoded(*related(seed=1, spread=0.05, layers=1))
    models = [weakref.ref(decoder.target), weakref.ref(decoder.draft)]
    decoder.target, decoder.draft = related(seed=2, spread=0.05, layers=1)
    fresh = SpeculativeDecoder(decoder.target, decoder.draft, decoder.tokenizer, threshold=0.2)
    assert decoder.generate([[5, 6, 7]], 12) == fresh.generate([[5, 6, 7]], 12)
    gc.collect()
    assert [model() for model in models] == [None, None]


@pytest.mark.slow
def test_graphs_beyond_the_bound_are_dropped_with_one_warning(graphs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callers, "MOST", 3)
    plain = tiny_decoder()
    ours = captured_copy(plain)

    def decode() -> None:
        for rule in ("fsd", "coupled", "fsd", "coupled"):
            assert_same_results(ours, plain, rule=rule)

    with pytest.warns(UserWarning, match="more than 3 graphs were needed") as caught:
        decode()
    if graphs == "compiled":
        assert len(caught) == 1
        assert isinstance(ours._pool._call, CompiledCaller)
        assert len(ours._pool._call) == 3
    else:
        assert count_graphs(ours) <= 3 * 2  # a batch that shrinks has a set of its own


@pytest.mark.thinned(every=2)
def test_few_graphs_are_kept_without_a_warning(graphs: str) -> None:
    plain = tiny_decoder()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same_results(captured_copy(plain), plain)
