"""Graphs are bounded in number, and do not outlive their models in memory."""

from __future__ import annotations

import gc
import warnings
import weakref
from typing import Any

import pytest

from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.engine import cache_pool
from fsd_decoding.graphs import callers
from fsd_decoding.graphs.callers import CompiledCaller
from lib.gpu.tape import Tape
from support.models.captured_decoders import assert_same_results, captured_copy, count_graphs
from support.models.tiny_models import word_tokenizer
from support.models.tiny_pair import related, tiny_decoder


@pytest.fixture(params=["on tape", "compiled"])
def graphs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "on tape":
        monkeypatch.setitem(cache_pool.CAPTURES, "cpu", lambda device: Tape())
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
