"""Decoding in workers: the texts of one process, whatever is killed, claimed or refused. Tiny models, float64."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
import torch

from fsd_calib.engines.base import DecodingRequest, KeyedPrompt
from fsd_calib.engines.own import OwnEngine, source_of
from fsd_calib.engines.workers import Batch, EngineWorkers, decode_batch
from fsd_calib.measuring.evaluator import CachedDecoder
from fsd_calib.measuring.measurement import Seeds
from fsd_calib.measuring.result_cache import ResultCache
from fsd_calib.tasks import Task, load_task
from fsd_common.errors import NumericalError, UsageError
from fsd_data import pair_paths
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.loading import load_model
from fsd_decoding.model_options import Loading
from fsd_decoding.profile.setting import Setting
from fsd_decoding.sampling import Sampling
from fsd_decoding.workers import model_workers, models
from fsd_decoding.workers.model_workers import (
    Capacity,
    ModelWorkers,
    Sources,
    cluster_share,
    cores,
    gpu_ids,
    open_workers,
    worker_gpus,
    workers_for,
)
from support import worker_tasks
from support.models.tiny_pair import saved
from support.models.tiny_task import tiny_task
from support.ray_clusters import local_cluster
from support.worker_processes import worker_processes

FUZZY = Setting("fsd-coupled", "js", 4, 0.1)
SETTINGS = [Setting("target", "js", 1), Setting("sd", "js", 3), FUZZY, replace(FUZZY, threshold=0.3)]
CAPACITY = Capacity(1000, 4)


def task(count: int = 60) -> Task:
    return cast(Task, tiny_task(count))


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    target, draft = saved(tmp_path_factory.mktemp("pair"))
    return Sources(str(target), (str(draft),), "cpu", "float64")


@pytest.fixture(scope="module")
def decoder(sources: Sources) -> SpeculativeDecoder:
    return SpeculativeDecoder.from_pretrained(sources.target, sources.drafts[0], device="cpu", dtype="float64")


@pytest.fixture(scope="module")
def pair_of_workers(sources: Sources) -> Iterator[ModelWorkers]:
    """Two, for all tests that kill none."""
    with open_workers(2, None, sources, CAPACITY) as made:
        assert made is not None
        yield made


def decoding(
    decoder: SpeculativeDecoder,
    workers: ModelWorkers | None,
    store: ResultCache,
    seeds: int = 1,
    count: int = 60,
) -> CachedDecoder:
    over = None
    if workers is not None:
        over = EngineWorkers(workers, source_of(decoder, task(count), workers.sources))
    return CachedDecoder(OwnEngine(decoder, task(count)), task(count), store, 4, seeds=seeds, workers=over)


def decoded(decoder: SpeculativeDecoder, workers: ModelWorkers | None, **settings: Any) -> list[list[Seeds]]:
    with ResultCache(None) as store:
        decode = decoding(decoder, workers, store, **settings)
        return [decode(setting, task().problems) for setting in SETTINGS]


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_texts_do_not_depend_on_workers(
    decoder: SpeculativeDecoder, pair_of_workers: ModelWorkers, temperature: float
) -> None:
    """Nor do rounds, and what is counted in them."""
    sampling = decoder.with_config(sampling=Sampling(temperature), seed=5)
    assert decoded(sampling, pair_of_workers, seeds=2) == decoded(sampling, None, seeds=2)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3])
def test_texts_do_not_depend_on_their_number(decoder: SpeculativeDecoder, sources: Sources, workers: int) -> None:
    with open_workers(workers, None, sources, CAPACITY) as made:
        assert (made is None) == (workers == 1)
        assert decoded(decoder, made) == decoded(decoder, None)


@pytest.mark.slow
def test_workers_decode_and_the_parent_alone_writes(
    decoder: SpeculativeDecoder, pair_of_workers: ModelWorkers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SpeculativeDecoder, "generate", None)  # of this process
    with ResultCache(tmp_path / "cache") as store:
        decode = decoding(decoder, pair_of_workers, store)
        first = decode(FUZZY, task().problems)
        assert (decode.decoded, decode.reused) == (60, 0)
        assert decode(FUZZY, task().problems) == first
        assert (decode.decoded, decode.reused) == (60, 60)
    with sqlite3.connect(tmp_path / "cache") as file:
        assert file.execute("SELECT count(*) FROM decodings").fetchone() == (60,)
        assert file.execute("SELECT count(*) FROM claims").fetchone() == (0,)


@pytest.mark.slow
def test_what_is_claimed_elsewhere_is_left_to_that_process(
    decoder: SpeculativeDecoder, pair_of_workers: ModelWorkers, tmp_path: Path
) -> None:
    """Two calibrations share a cache: each problem is decoded once."""
    with ResultCache(tmp_path / "cache") as store, ResultCache(tmp_path / "cache") as other:
        decode, key = decoding(decoder, pair_of_workers, store), decoding(decoder, None, other).key(FUZZY)
        claimed = [KeyedPrompt(p.id, p.prompt) for p in task().problems[::3]]
        assert all(other.claim(key, query, FUZZY.threshold) for query in claimed)
        threading.Timer(2.0, other_calibration, (tmp_path / "cache", decoder, [q.id for q in claimed])).start()
        texts = decode(FUZZY, task().problems)
        assert (decode.decoded, decode.reused) == (40, 20)
    assert texts == decoded(decoder, None)[SETTINGS.index(FUZZY)]


def other_calibration(path: Path, decoder: SpeculativeDecoder, ids: list[int]) -> None:
    """Decodes the problems that were claimed for it."""
    with ResultCache(path) as store:
        decode = decoding(decoder, None, store)
        for problem in task().problems:
            if problem.id in ids:
                query = KeyedPrompt(problem.id, problem.prompt)
                (result,) = OwnEngine(decoder, task()).decode(DecodingRequest(FUZZY, 0, [query], 1))
                store.add(decode.key(FUZZY), query, FUZZY.threshold, result)


@pytest.mark.slow
def test_this_process_begins_and_workers_go_on(decoder: SpeculativeDecoder, pair_of_workers: ModelWorkers) -> None:
    """By default they are started once decoding has taken as long as that takes, also in the middle of a call."""
    patient = ModelWorkers(pair_of_workers.pool, pair_of_workers.sources, after=0.05)
    due_before, texts = patient.due, decoded(decoder, patient)
    assert (due_before, patient.due) == (False, True)
    assert 0.05 <= patient.spent < 5
    assert texts == decoded(decoder, None)


def test_short_decoding_starts_no_worker(
    decoder: SpeculativeDecoder, sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOKY_MAX_CPU_COUNT")
    monkeypatch.setattr(model_workers, "_STARTING", 1000.0)  # any decoding is short, however busy the machine is
    before = worker_processes()
    with open_workers(None, None, sources, Capacity(1000, 4, 1, 1 << 40)) as made:
        assert (made is not None) == (cores() > 1)
        decoded(decoder, made)
        assert worker_processes() == before


@pytest.mark.slow
def test_ten_kills_change_nothing(decoder: SpeculativeDecoder, sources: Sources, tmp_path: Path) -> None:
    """Workers are killed at ten moments, in imports, loading or decoding: no result is lost, and none is doubled."""
    random, notes, kills = Random(0), list[str](), list[int]()
    with open_workers(2, None, sources, CAPACITY, notes.append) as made, ResultCache(tmp_path / "cache") as store:
        assert made is not None
        over = threading.Event()

        def kill() -> None:
            while len(kills) < 10 and not over.wait(random.uniform(0.1, 2.0)):
                running, run = worker_processes(), len(runs)
                if running and kills.count(run) < 2:  # three of one batch in a row would be an error
                    with suppress(ProcessLookupError):  # it ended by itself
                        os.kill(random.choice(running), signal.SIGKILL)
                        kills.append(run)

        runs: list[tuple[Setting, list[Seeds]]] = []
        killer = threading.Thread(target=kill)
        killer.start()
        try:
            while len(kills) < 10:
                at = replace(FUZZY, draft_length=1 + len(runs), threshold=0.1 + len(runs) / 1000)
                runs.append((at, decoding(decoder, made, store)(at, task().problems)))
        finally:
            over.set()
            killer.join()
        assert notes
        with ResultCache(None) as empty:
            whole = decoding(decoder, None, empty)
            assert all(found == whole(at, task().problems) for at, found in runs)
    with sqlite3.connect(tmp_path / "cache") as file:
        doubled = "SELECT count(*) FROM decodings GROUP BY key, problem, threshold HAVING count(*) > 1"
        assert file.execute(doubled).fetchall() == []


@pytest.mark.slow
def test_an_error_of_a_worker_is_that_of_one_process(sources: Sources, tmp_path: Path) -> None:
    """The target's last norm is NaN in one place."""
    broken = tmp_path / "target"
    shutil.copytree(sources.target, broken)
    target = load_model(broken, "cpu", None)
    with torch.no_grad():
        target.model.norm.weight[0] = torch.nan
    target.save_pretrained(broken)
    damaged = replace(sources, target=str(broken))
    loaded = SpeculativeDecoder.from_pretrained(damaged.target, damaged.drafts[0], device="cpu", dtype="float64")
    with open_workers(2, None, damaged, CAPACITY) as made, ResultCache(None) as store:
        decode = decoding(loaded, made, store)
        with pytest.raises(NumericalError, match=r"prompt \d+ got logits that are NaN or \+inf"):
            decode(FUZZY, task().problems)


def test_a_worker_with_other_models_refuses(decoder: SpeculativeDecoder, sources: Sources) -> None:
    swapped = replace(sources, target=str(sources.drafts[0]), drafts=(str(sources.target),))
    source, key = source_of(decoder, task(), swapped), OwnEngine(decoder, task()).key(FUZZY, 0)
    with pytest.raises(UsageError, match="a worker has other models, or other versions of libraries"):
        decode_batch(source, Batch(DecodingRequest(FUZZY, 0, [KeyedPrompt(1, "w21")], 4), (0,), key))
    models._kept.clear()


# How many


def test_loaded_models_are_decoded_by_this_process(decoder: SpeculativeDecoder, sources: Sources) -> None:
    loaded = Sources(decoder.target, (sources.drafts[0],))
    assert workers_for(None, loaded, CAPACITY) == 1
    assert workers_for(1, loaded, CAPACITY) == 1
    with pytest.raises(UsageError, match="workers is 2, and the target is a loaded LlamaForCausalLM, which a worker"):
        workers_for(2, loaded, CAPACITY)


def test_by_default_there_is_one_for_each_core_that_has_work_and_memory(
    sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fsd_decoding.workers.model_workers.cores", lambda: 6)
    gigabyte = 1 << 30
    assert workers_for(None, sources, Capacity(1000, 32)) == 1  # it is unknown what they need
    assert workers_for(None, sources, Capacity(1000, 32, gigabyte)) == 6
    assert workers_for(None, sources, Capacity(100, 32, gigabyte)) == 3
    assert workers_for(None, sources, Capacity(63, 32, gigabyte)) == 1
    assert workers_for(None, sources, Capacity(1000, 32, gigabyte, 8 * gigabyte)) == 4
    assert workers_for(None, sources, Capacity(1000, 32, gigabyte, gigabyte)) == 1
    assert workers_for(9, sources, Capacity(1000, 32)) == 9
    with pytest.raises(UsageError, match="workers is 5, and besides this process at most 4 fit into memory"):
        workers_for(5, sources, Capacity(1000, 32, gigabyte, 8 * gigabyte))
    with pytest.raises(UsageError, match="this process fewer than two fit into memory; leave workers out"):
        workers_for(2, sources, Capacity(1000, 32, gigabyte, 3 * gigabyte))


def test_cores_are_those_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """joblib knows quotas of containers, which take root to set, and this variable."""
    monkeypatch.setenv("LOKY_MAX_CPU_COUNT", "1")
    assert cores() == 1


def test_on_a_cluster_all_workers_find_a_place_at_once() -> None:
    assert cluster_share(None, [(8, 0), (4, 0)], "cpu") == (12, 1, 0)
    assert cluster_share(2, [(8, 0), (4, 0)], "cpu") == (2, 4, 0)
    assert cluster_share(3, [(8, 0), (8, 0)], "cpu") == (3, 4, 0)
    assert cluster_share(None, [(8, 2), (4, 1)], "cuda") == (3, 1, 1)
    assert cluster_share(2, [(8, 2), (4, 1)], "cuda") == (2, 1, 1)
    assert cluster_share(None, [(8, 2)], "cpu") == (8, 1, 0)
    with pytest.raises(UsageError, match="workers is 4, and the Ray cluster has 3 GPUs"):
        cluster_share(4, [(8, 2), (4, 1)], "cuda")
    assert cluster_share(None, [(8, 7), (8, 4)], "cuda", 4) == (2, 1, 4)
    with pytest.raises(UsageError, match="workers is 3, and the Ray cluster has 2 times 4 GPUs on one machine"):
        cluster_share(3, [(8, 7), (8, 4)], "cuda", 4)


def test_a_cluster_is_like_the_process_that_it_decodes_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="the device is cuda, and the Ray cluster has no GPUs"):
        cluster_share(None, [(8, 0)], "cuda")
    for default in ("cpu", "cuda"):
        monkeypatch.setattr("fsd_decoding.workers.model_workers.default_device", lambda default=default: default)
        assert cluster_share(None, [(8, 2 * (default == "cuda"))], None)[2] == (default == "cuda")
    monkeypatch.setattr("fsd_decoding.workers.model_workers.default_device", lambda: "cpu")
    with pytest.raises(UsageError, match="the Ray cluster has 2 GPUs and this process none"):
        cluster_share(None, [(8, 2)], None)


def test_gpus_are_those_that_this_process_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert gpu_ids(Sources("target", ("draft",), "cuda")) == ("3", "5")
    assert gpu_ids(Sources("target", ("draft",), "cuda:0")) == gpu_ids(Sources("target", ("draft",), "cpu")) == ()


def test_processes_that_do_not_share_gpus_leave_the_first_to_the_one_that_starts_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5,6,7,8,9,10")
    sources = Sources("target", ("draft",), "cuda")
    assert worker_gpus(sources, Capacity(1000, 4)) == ("3", "5", "6", "7", "8", "9", "10")
    in_pairs = Capacity(1000, 4, gpus_each=2)
    assert worker_gpus(sources, in_pairs) == ("6,7", "8,9")
    assert workers_for(2, sources, in_pairs) == 2
    with pytest.raises(UsageError, match=r"workers is 3, and each process takes 2 of the 7 GPUs .* room for 2; give 2"):
        workers_for(3, sources, in_pairs)
    with pytest.raises(UsageError, match="leaves room for 1; leave workers out, as one is no faster"):
        workers_for(2, sources, Capacity(1000, 4, gpus_each=3))
    assert workers_for(3, replace(sources, device="cpu"), in_pairs) == 3


def test_models_under_a_device_map_see_all_gpus_and_have_no_workers_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    monkeypatch.setattr("fsd_decoding.workers.model_workers.default_device", lambda: "cuda")
    spread = Sources("target", ("draft",), loading=Loading.of({"device_map": "auto"}, None))
    assert gpu_ids(spread) == ()
    assert workers_for(None, spread, Capacity(1000, 32, 1, 1 << 40)) == 1
    assert workers_for(2, spread, Capacity(1000, 32)) == 2


@pytest.mark.slow
def test_texts_do_not_depend_on_where_workers_run(decoder: SpeculativeDecoder, sources: Sources) -> None:
    """On a Ray cluster, where one is killed meanwhile."""
    notes = list[str]()
    with local_cluster(2), open_workers(None, "auto", sources, CAPACITY, notes.append) as made:
        assert made is not None
        assert made.pool.workers == 2
        processes = {process for _, process in made.pool.run(worker_tasks.pid_after, [0.5] * 4)}
        assert len(processes) == 2
        threading.Timer(1.0, os.kill, (processes.pop(), signal.SIGKILL)).start()
        assert decoded(decoder, made) == decoded(decoder, None)
    assert len(notes) == 1


@pytest.mark.slow
def test_texts_of_the_bundled_pair_do_not_depend_on_workers() -> None:
    target, draft = map(str, pair_paths())
    bundled = Sources(target, (draft,), "cpu", "float64")
    decoder = SpeculativeDecoder.from_pretrained(target, draft, device="cpu", dtype="float64")
    problems = load_task("arithmetic", 3, 40, None, decoder.tokenizer)
    found = []
    with open_workers(2, None, bundled, CAPACITY) as made:
        assert made is not None
        for workers in (EngineWorkers(made, source_of(decoder, problems, bundled)), None):
            with ResultCache(None) as store:
                found.append(
                    CachedDecoder(OwnEngine(decoder, problems), problems, store, 8, workers=workers)(
                        FUZZY, problems.problems
                    )
                )
    assert found[0] == found[1]
