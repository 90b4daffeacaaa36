"""Reuse of KV caches by captured rounds: for which models, when they return to the pool, and when they are dropped."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from fsd_common.errors import NumericalError, OutOfMemoryError, UsageError
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.engine import cache_pool
from fsd_decoding.graphs import callers
from fsd_decoding.graphs.capture import CapturingCaller
from lib.gpu.tape import Tape
from support.models.captured_decoders import NEW, PROMPTS, assert_same_results, captured_copy, free_caches
from support.models.tiny_pair import related, tiny_decoder


@pytest.fixture(autouse=True)
def on_tape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cache_pool.CAPTURES, "cpu", Tape)


@pytest.fixture(scope="module")
def plain() -> SpeculativeDecoder:
    return tiny_decoder()


@pytest.fixture
def captured(plain: SpeculativeDecoder) -> SpeculativeDecoder:
    return captured_copy(plain)


@pytest.mark.slow
def test_other_models_get_caches_of_their_own_and_free_the_old(captured: SpeculativeDecoder) -> None:
    for seed in (5, 6):
        captured.target, captured.draft = related(seed=seed, spread=0.05)
        theirs = SpeculativeDecoder(captured.target, captured.draft, captured.tokenizer)
        for _ in range(2):
            assert_same_results(captured, theirs)
        assert len(free_caches(captured)) == 1


@pytest.mark.slow
def test_weights_that_moved_get_new_caches() -> None:
    ours = captured_copy(tiny_decoder())
    assert_same_results(ours, ours)
    (before,) = free_caches(ours)
    for weight in ours.target.parameters():
        weight.data = weight.data * 0.5  # elsewhere in memory
    assert_same_results(ours, SpeculativeDecoder(ours.target, ours.draft, ours.tokenizer))
    assert before not in free_caches(ours)


@pytest.mark.slow
def test_longer_texts_get_larger_caches_and_shorter_ones_reuse_them(plain: SpeculativeDecoder) -> None:
    pair = related(seed=1, spread=0.05, max_position_embeddings=512)
    captured = captured_copy(SpeculativeDecoder(*pair, plain.tokenizer))
    slots = []
    for new in (8, 260, 8):
        captured.generate(PROMPTS[:4], new, draft_length=3)
        (caches,) = free_caches(captured)
        slots.append(caches.slots)
    assert slots[0] < slots[1] == slots[2]


def test_streams_that_take_turns_do_not_disturb_each_other(
    captured: SpeculativeDecoder, plain: SpeculativeDecoder
) -> None:
    for _ in range(2):
        streams = [captured.stream(prompt, NEW) for prompt in PROMPTS[:3]]
        texts = ["", "", ""]
        for pieces in zip(*(_padded(stream) for stream in streams), strict=False):
            texts = [text + piece for text, piece in zip(texts, pieces, strict=True)]
            if not any(pieces):
                break
        assert texts == [plain.generate([prompt], NEW)[0].text for prompt in PROMPTS[:3]]


def _padded(stream: Iterator[str]) -> Iterator[str]:
    yield from stream
    while True:
        yield ""


def test_a_stream_that_is_closed_returns_its_caches(captured: SpeculativeDecoder, plain: SpeculativeDecoder) -> None:
    stream = captured.stream(PROMPTS[0], NEW)
    next(stream)
    assert not free_caches(captured)
    stream.close()  # type: ignore[attr-defined]  # a generator
    (caches,) = free_caches(captured)
    assert captured.generate(PROMPTS[:1], NEW) == plain.generate(PROMPTS[:1], NEW)
    assert free_caches(captured) == [caches]


def test_memory_is_freed_with_its_decoder(plain: SpeculativeDecoder) -> None:
    """By reference counts alone, because the garbage collector does not run when a GPU's memory is short."""
    ours = captured_copy(plain)
    gc.disable()
    try:
        for _ in range(2):
            ours.generate(PROMPTS[:4], NEW)
        (caches,) = free_caches(ours)
        cache = weakref.ref(caches.target.cache)
        del caches, ours
        assert cache() is None
    finally:
        gc.enable()


def test_reused_caches_have_an_empty_batch(captured: SpeculativeDecoder) -> None:
    settings = captured.settings()
    requests = captured.requests(PROMPTS[:4], NEW)
    rounds = captured.engine(settings, requests, 4).rounds(requests)
    next(rounds)
    rounds.close()  # type: ignore[attr-defined]  # a generator
    (released,) = free_caches(captured)
    assert released.batch.lengths.amax() > 1
    batch = captured.engine(settings, requests, 4)._batch
    assert batch is released.batch
    assert batch.lengths.tolist() == [1] * 4
    assert batch.draft_lengths.tolist() == [0] * 4


def test_concurrent_streams_have_caches_each(captured: SpeculativeDecoder) -> None:
    for _ in range(2):
        streams = [captured.stream(prompt, NEW) for prompt in PROMPTS[:3]]
        for stream in streams:
            next(stream, "")
        for stream in streams:
            stream.close()  # type: ignore[attr-defined]  # a generator
        assert len(free_caches(captured)) == 3


def test_unused_caches_are_dropped_when_memory_runs_out(captured: SpeculativeDecoder) -> None:
    captured.generate(PROMPTS[:4], NEW)

    def full(module: Any, args: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    hook = captured.target.get_input_embeddings().register_forward_pre_hook(full)
    try:
        with pytest.raises(OutOfMemoryError):
            captured.generate(PROMPTS[:1], NEW)
    finally:
        hook.remove()
    assert not free_caches(captured)


def test_caches_are_reused_outside_inference_mode(captured: SpeculativeDecoder, plain: SpeculativeDecoder) -> None:
    with torch.inference_mode():
        assert_same_results(captured, plain)
    assert_same_results(captured, plain)


def test_a_model_is_checked_again_before_its_caches_are_reused() -> None:
    ours = captured_copy(tiny_decoder())
    ours.generate(PROMPTS[:1], NEW)
    for model in (ours.target, ours.draft):
        model.train()
        with pytest.raises(UsageError, match="is in training mode"):
            ours.generate(PROMPTS[:1], NEW)
        model.eval()
    ours.draft.train()
    ours.generate(PROMPTS[:1], NEW, rule="target")  # which needs no draft


@pytest.mark.slow
def test_other_temperatures_need_graphs_but_no_more_memory_for_results(
    captured: SpeculativeDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callers, "MOST", 8)
    results = []

    def decode() -> None:
        for n in range(6):
            for _ in range(2):
                captured.generate(PROMPTS[:4], 12, 0.5 + n / 10)
            (caches,) = free_caches(captured)
            assert isinstance(caches.call, CapturingCaller)
            assert 0 < len(caches.call) <= 8
            results.append(len(caches.call._results))

    with pytest.warns(UserWarning, match="more than 8 graphs were needed"):
        decode()
    assert len(set(results)) == 1


def test_a_round_with_nan_spoils_its_caches_even_if_the_caller_stops(captured: SpeculativeDecoder) -> None:
    settings = captured.settings()
    requests = captured.requests(PROMPTS[:4], NEW)
    hook = captured.target.get_input_embeddings().register_forward_hook(lambda module, args, out: out * float("nan"))
    try:
        rounds = captured.engine(settings, requests, 4).rounds(requests)
        next(rounds)
    finally:
        hook.remove()
    rounds.close()  # type: ignore[attr-defined]  # a generator
    assert not free_caches(captured)


@pytest.mark.slow
def test_caches_are_dropped_after_an_error(plain: SpeculativeDecoder) -> None:
    """NaN would stay in them."""
    ours = captured_copy(plain)
    ours.generate(PROMPTS[:4], NEW)
    (before,) = free_caches(ours)

    def discard(module: Any, args: Any, out: Tensor) -> Tensor:
        return out * float("nan")

    hook = plain.target.get_input_embeddings().register_forward_hook(discard)
    try:
        with pytest.raises(NumericalError):
            ours.generate([[7] * 30] * 4, NEW)  # another reach, so no captured step is replayed
    finally:
        hook.remove()
    assert not free_caches(ours)
    assert_same_results(ours, plain)
    assert free_caches(ours) != [before]
