"""Estimates of memory: equal to what the models and the pool of KV caches allocate, without loading a weight."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch

from fsd_common.errors import UsageError
from fsd_data import pair_paths
from fsd_decoding import free_memory
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.divergence import chunk_elements
from fsd_decoding.drafters.eagle import Eagle
from fsd_decoding.drafters.eagle_head import EagleDrafter
from fsd_decoding.drafters.ngram import NGram
from fsd_decoding.engine.cache_pool import Models, PooledCaches
from fsd_decoding.graphs.callers import EagerCaller
from fsd_decoding.loading import load_model
from fsd_decoding.memory import ModelSize, UnknownSizeError, Workload, need
from fsd_decoding.models.lean import copied_bytes
from fsd_decoding.models.runner import vocabulary_size
from support.models.tiny_heads import HEADS, LAYERS, eagle1_files, eagle3_files, written
from support.models.tiny_models import FAMILIES, llama, random_model, word_tokenizer

WORK = Workload(longest=100, prompt=40, draft_length=5, greedy=True)
GIB = 1 << 30


def allocated(models: Models, rows: int, slots: int) -> int:
    """Bytes of both models' KV caches, as the pool allocates them."""
    caches = PooledCaches.allocate(models, rows, slots, EagerCaller()).reset(drafts=True)
    assert caches.drafter is not None
    with torch.inference_mode():
        every = torch.arange(rows)
        for prefilled in (caches.target, caches.drafter):
            prefilled.prefill(every, torch.zeros((rows, 2), dtype=torch.int64), 2)
            prefilled.catch_up()
    drafter: Any = caches.drafter
    of_draft = drafter._cache if isinstance(drafter, EagleDrafter) else drafter._runner.cache
    return caches.target.cache.nbytes + int(of_draft.nbytes)


def test_weights_and_caches_of_the_bundled_pair_are_exact() -> None:
    paths = [str(path) for path in pair_paths()]
    sizes = [ModelSize.of(path, None) for path in paths]
    models = [load_model(path, "cpu", None) for path in paths]
    found = need(sizes[0], sizes[1:], WORK, 7, "cpu")
    weights = [sum(t.nbytes for t in chain(model.parameters(), model.buffers())) for model in models]
    assert [found["target's weights"], found["drafts' weights"]] == weights
    assert found["joined weights"] == sum(map(copied_bytes, models))
    both = Models(models[0], models[1], min(map(vocabulary_size, models)))
    assert found["KV caches"] == allocated(both, 7, EagerCaller().size(WORK.longest))


def test_the_dtype_that_is_asked_for_counts() -> None:
    path = str(pair_paths()[0])
    whole, half = (ModelSize.of(path, dtype) for dtype in ("float32", "bfloat16"))
    assert whole.slot == 2 * half.slot
    assert whole.weights == pytest.approx(2 * half.weights, rel=0.001)  # some buffers stay fp32


@pytest.mark.thinned(every=3)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_slot_of_every_family_is_as_large_as_what_is_allocated(family: str) -> None:
    model = random_model(FAMILIES[family], seed=1)
    size = ModelSize.of(model, None)
    assert size.weights == 0  # it is loaded already
    assert 64 * 3 * size.slot * 2 == allocated(Models(model, model, size.logits), 3, 64)


def test_a_loaded_model_is_not_changed() -> None:
    model = random_model(FAMILIES["mixtral"], seed=1)
    before = model.config.to_dict(), model.get_experts_implementation()
    ModelSize.of(model, None)
    assert before == (model.config.to_dict(), model.get_experts_implementation())


def test_a_draft_that_is_no_model_takes_nothing() -> None:
    alone = need(ModelSize.of(llama(seed=1), None), [ModelSize.of(NGram(), None)], WORK, 4, "cpu")
    assert alone["drafts' weights"] == 0


@pytest.mark.parametrize(("kind", "files"), [("EAGLE-1", eagle1_files), ("EAGLE-3", eagle3_files)])
def test_a_slot_of_a_head_is_as_large_as_what_is_allocated(kind: str, files: Any, tmp_path: Path) -> None:
    """Beside that of its target, whose states are kept for it."""
    target = llama(seed=1, layers=8).double()
    head = Eagle(written(tmp_path / "head", files(HEADS[kind](target), target), target_hidden_states=list(LAYERS)))
    alone, size = ModelSize.of(target, None), ModelSize.of(head, torch.float64)
    assert 64 * 3 * (alone.slot + size.slot) == allocated(Models(target, head.load(target), alone.logits), 3, 64)
    half = ModelSize.of(head, "bfloat16")
    assert (4 * half.weights, 4 * half.slot) == (size.weights, size.slot)


def test_more_rows_and_sampling_take_more() -> None:
    size = ModelSize.of(llama(seed=1), None)
    one, two = (need(size, [size], WORK, rows, "cpu") for rows in (1, 2))
    assert 2 * one["KV caches"] == two["KV caches"]
    assert sum(one.values()) < sum(two.values())
    sampled = need(size, [size], Workload(**vars(WORK) | {"greedy": False}), 1, "cpu")
    assert sampled["logits of a round"] > one["logits of a round"]


def test_logits_are_those_of_a_round() -> None:
    size = ModelSize.of(llama(seed=1), "float32")
    assert need(size, [size], WORK, 3, "cpu")["logits of a round"] == 3 * size.logits * 4 * (6 + 2 * 5)


@pytest.mark.parametrize("vocabulary", [7, 1 << 14, 1 << 20])
def test_a_chunk_is_whole_rows(vocabulary: int) -> None:
    for device in ("cpu", "cuda"):
        assert chunk_elements(device, vocabulary) % vocabulary == 0
        assert chunk_elements(device, vocabulary) >= vocabulary


def test_models_over_several_devices_are_not_estimated() -> None:
    model = llama(seed=1)
    model.hf_device_map = {"": 0}
    with pytest.raises(UnknownSizeError, match="spread over devices by a device map"):
        ModelSize.of(model, None)


def test_quantised_weights_are_as_large_as_their_files(tmp_path: Path) -> None:
    model = llama(seed=1)
    model.save_pretrained(tmp_path)
    config = (tmp_path / "config.json").read_text(encoding="utf-8")
    quantised = '{"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": true},'
    (tmp_path / "config.json").write_text(config.replace("{", quantised, 1), encoding="utf-8")
    assert ModelSize.of(str(tmp_path), None).weights == (tmp_path / "model.safetensors").stat().st_size
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(UnknownSizeError, match="is quantised, and its files are not in a local folder"):
        ModelSize.of(str(tmp_path), None)


def test_a_model_that_cannot_be_run_is_refused_without_its_weights(tmp_path: Path) -> None:
    from transformers import RwkvConfig

    RwkvConfig(hidden_size=16, num_hidden_layers=1, vocab_size=40).save_pretrained(tmp_path)
    with pytest.raises(UsageError, match="rwkv keeps a state that cannot be rolled back"):
        ModelSize.of(str(tmp_path), None)


@pytest.mark.slow
def test_a_whole_decoding_takes_about_what_is_estimated() -> None:
    """The most memory that a process of its own held at once: what is left after a round depends on the allocator.

    Not exact by nature: the interval is wide, and a half more or less would be noticed.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh:  # this one has freed memory to reuse
        estimate, growth = fresh.submit(estimate_and_growth).result()
    assert 0.65 * estimate < growth < 1.35 * estimate


def estimate_and_growth() -> tuple[int, int]:
    """Bytes that decoding is estimated to need, and that it took."""
    model = llama(seed=1, hidden_size=256, num_attention_heads=8, num_key_value_heads=8, max_position_embeddings=2048)
    decoder = SpeculativeDecoder(model, model, word_tokenizer(), rule="fsd-coupled", threshold=0.5, draft_length=5)
    decoder.generate([[1, 2, 3]], 4)
    requests = decoder.requests([[2 + i % 30, 2 + i // 30, *[1] * 598] for i in range(96)], 40)  # they share nothing
    size = ModelSize.of(model, None)
    estimate = need(size, [size], Workload(646, 600, 5, True), 96, "cpu")
    before = free_memory._fields(Path("/proc/self/status"))["VmRSS:"]
    rounds: Any = decoder.engine(decoder.settings(), requests, 96).rounds(requests)
    next(rounds)
    most = free_memory._fields(Path("/proc/self/status"))["VmHWM:"]
    rounds.close()
    return sum(estimate.values()), (most - before) * 1024
