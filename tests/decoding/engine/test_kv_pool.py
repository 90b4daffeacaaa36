"""Rooms that captured rounds leave to each other: whose they are, when they are kept and when given up."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.engine import kv_pool
from fsd_decoding.errors import NumericalError, OutOfMemoryError, UsageError
from fsd_decoding.graphs import capture
from fsd_decoding.graphs.capture import Captured
from lib.gpu.tape import Tape
from support.captured_decoders import NEW, PROMPTS, assert_same_results, captured_copy, free_caches
from support.tiny_pair import related, tiny_decoder


@pytest.fixture(autouse=True)
def on_tape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(kv_pool.CAPTURES, "cpu", lambda device: Tape())


@pytest.fixture(scope="module")
def plain() -> SpeculativeDecoder:
    return tiny_decoder()


@pytest.fixture
def captured(plain: SpeculativeDecoder) -> SpeculativeDecoder:
    return captured_copy(plain)


def test_other_models_get_rooms_of_their_own_and_free_the_old(captured: SpeculativeDecoder) -> None:
    for seed in (5, 6):
        captured.target, captured.draft = related(seed=seed, spread=0.05)
        theirs = SpeculativeDecoder(captured.target, captured.draft, captured.tokenizer)
        for _ in range(2):
            assert_same_results(captured, theirs)
        assert len(free_caches(captured)) == 1


def test_weights_that_moved_are_read_where_they_are() -> None:
    ours = captured_copy(tiny_decoder())
    assert_same_results(ours, ours)
    (before,) = free_caches(ours)
    for weight in ours.target.parameters():
        weight.data = weight.data * 0.5  # elsewhere in memory
    assert_same_results(ours, SpeculativeDecoder(ours.target, ours.draft, ours.tokenizer))
    assert before not in free_caches(ours)


def test_longer_texts_get_a_larger_room_and_shorter_ones_keep_it(captured: SpeculativeDecoder) -> None:
    slots = []
    for new in (8, 200, 8):
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


def test_a_stream_that_is_given_up_leaves_its_room(captured: SpeculativeDecoder, plain: SpeculativeDecoder) -> None:
    stream = captured.stream(PROMPTS[0], NEW)
    next(stream)
    assert not free_caches(captured)
    stream.close()  # type: ignore[attr-defined]  # a generator
    (caches,) = free_caches(captured)
    assert captured.generate(PROMPTS[:1], NEW) == plain.generate(PROMPTS[:1], NEW)
    assert free_caches(captured) == [caches]


def test_memory_goes_with_its_decoder(plain: SpeculativeDecoder) -> None:
    """At once: garbage collection knows nothing of what a GPU has left."""
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


def test_a_room_is_entered_empty(captured: SpeculativeDecoder) -> None:
    settings = captured._settings(None, captured.sampling, ())
    asked = captured.requests(PROMPTS[:4], NEW, None, None, None, None)
    rounds = captured.engine(settings, asked, 4).rounds(asked)
    next(rounds)
    rounds.close()  # type: ignore[attr-defined]  # a generator
    (left,) = free_caches(captured)
    assert left.batch.lengths.amax() > 1
    batch = captured.engine(settings, asked, 4)._batch
    assert batch is left.batch
    assert batch.lengths.tolist() == [1] * 4
    assert batch.draft_lengths.tolist() == [0] * 4


def test_concurrent_streams_keep_a_room_each(captured: SpeculativeDecoder) -> None:
    for _ in range(2):
        streams = [captured.stream(prompt, NEW) for prompt in PROMPTS[:3]]
        for stream in streams:
            next(stream, "")
        for stream in streams:
            stream.close()  # type: ignore[attr-defined]  # a generator
        assert len(free_caches(captured)) == 3


def test_where_memory_runs_out_rooms_that_nobody_uses_are_given_up(captured: SpeculativeDecoder) -> None:
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


def test_a_room_outlives_inference_mode(captured: SpeculativeDecoder, plain: SpeculativeDecoder) -> None:
    with torch.inference_mode():
        assert_same_results(captured, plain)
    assert_same_results(captured, plain)


def test_a_model_is_looked_at_again_before_its_room_is_used() -> None:
    ours = captured_copy(tiny_decoder())
    ours.generate(PROMPTS[:1], NEW)
    for model in (ours.target, ours.draft):
        model.train()
        with pytest.raises(UsageError, match="is in training mode"):
            ours.generate(PROMPTS[:1], NEW)
        model.eval()
    ours.draft.train()
    ours.generate(PROMPTS[:1], NEW, rule="target")  # which asks no draft


def test_other_temperatures_need_graphs_but_no_more_room_for_results(
    captured: SpeculativeDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture, "_MOST", 8)
    results = []
    for n in range(6):
        for _ in range(2):
            captured.generate(PROMPTS[:4], 12, 0.5 + n / 10)
        (caches,) = free_caches(captured)
        assert isinstance(caches.call, Captured)
        assert 0 < len(caches.call) <= 8
        results.append(len(caches.call._results))
    assert len(set(results)) == 1


def test_a_round_that_broke_spoils_its_room_whoever_stops_listening(captured: SpeculativeDecoder) -> None:
    settings = captured._settings(None, captured.sampling, ())
    asked = captured.requests(PROMPTS[:4], NEW, None, None, None, None)
    hook = captured.target.get_input_embeddings().register_forward_hook(lambda module, args, out: out * float("nan"))
    try:
        rounds = captured.engine(settings, asked, 4).rounds(asked)
        next(rounds)
    finally:
        hook.remove()
    rounds.close()  # type: ignore[attr-defined]  # a generator
    assert not free_caches(captured)


def test_a_room_where_something_went_wrong_is_given_up(plain: SpeculativeDecoder) -> None:
    """What is no number would stay in its caches."""
    ours = captured_copy(plain)
    ours.generate(PROMPTS[:4], NEW)
    (before,) = free_caches(ours)

    def spoil(module: Any, args: Any, out: Tensor) -> Tensor:
        return out * float("nan")

    hook = plain.target.get_input_embeddings().register_forward_hook(spoil)
    try:
        with pytest.raises(NumericalError):
            ours.generate([[7] * 30] * 4, NEW)  # another reach: no step of the old room's is replayed
    finally:
        hook.remove()
    assert not free_caches(ours)
    assert_same_results(ours, plain)
    assert free_caches(ours) != [before]
