"""Portions read by workers make the folder that one process makes. Tiny models, float64."""

from __future__ import annotations

import os
import pickle
import signal
import threading
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, cast

import pytest

from fsd_calib import collect_traces
from fsd_collectors.collection.portions import Portion, PortionJob, ReadPortion, read_in_workers
from fsd_collectors.store.reading import Traces
from fsd_collectors.store.verifying import verify
from fsd_common.errors import NumericalError, UsageError
from fsd_decoding.workers import model_workers
from fsd_decoding.workers.pool import WorkerPool
from fsd_decoding.workers.serving import Served
from support.models.tiny_models import word_tokenizer
from support.models.tiny_pair import related, saved
from support.models.tiny_task import tiny_task
from support.worker_processes import worker_processes

WAYS: dict[str, dict[str, Any]] = {
    "along the target": {"temperature": 1.0, "hidden": 4},
    "on-policy": {"rule": "fsd-coupled", "threshold": 0.1, "draft_length": 3},
}
TIMES = ["draft_seconds", "verify_seconds"]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return saved(tmp_path_factory.mktemp("pair"))


def collected(pair: tuple[Any, Any], out: Path, workers: int | None, **settings: Any) -> Traces:
    return collect_traces(
        tiny_task(70), target=pair[0], draft=pair[1], out=out, batch_size=2, device="cpu", dtype="float64",
        workers=workers, **settings,
    )  # fmt: skip


def content(traces: Traces) -> list[Any]:
    """All tables, without the time that rounds took."""
    assert verify(traces.path) == []
    tables = [traces.tokens, traces.completions, *([traces.rounds] if traces.manifest.policy else [])]
    read = [table.to_table() for table in tables]
    return [table.drop_columns([name for name in TIMES if name in table.column_names]) for table in read]


@pytest.mark.slow
@pytest.mark.parametrize(("way", "workers"), list(zip(WAYS, (3, 2), strict=True)))
def test_the_folder_does_not_depend_on_workers(pair: tuple[Path, Path], tmp_path: Path, way: str, workers: int) -> None:
    alone, other = (collected(pair, tmp_path / str(count), count, **WAYS[way]) for count in (1, workers))
    assert other.manifest == alone.manifest
    assert content(other) == content(alone)
    assert [shard.portion for shard in other.shards] == [0, 1, 2]


@pytest.mark.slow
def test_a_killed_worker_changes_nothing(pair: tuple[Path, Path], tmp_path: Path) -> None:
    over, killed_ones = threading.Event(), list[int]()

    def kill_one() -> None:
        while not over.wait(0.1):
            if running := worker_processes():
                over.wait(1.5)
                with suppress(ProcessLookupError):  # it ended by itself
                    os.kill(running[0], signal.SIGKILL)
                    killed_ones.append(running[0])
                return

    killer = threading.Thread(target=kill_one)
    killer.start()
    try:
        killed = collected(pair, tmp_path / "killed", 2)
    finally:
        over.set()
        killer.join()
    assert killed_ones
    assert content(killed) == content(collected(pair, tmp_path / "alone", 1))


READ = ReadPortion([])


class SlowAtFirst:
    """A backend whose workers have read every portion at once, except the first."""

    deaths = (BrokenProcessPool,)

    def __init__(self) -> None:
        self.begun: list[int] = []

    def worker(self, number: int) -> SlowAtFirst:
        return self

    def send(self, request: bytes) -> Future[Served]:
        future, portion = Future[Served](), pickle.loads(request)[1]
        self.begun.append(portion.number)
        threading.Timer(0.5 if portion.number == 0 else 0.0, future.set_result, (Served(READ),)).start()
        return future

    def stop(self) -> None:
        pass


def test_portions_are_read_ahead_of_a_slow_one_within_bounds() -> None:
    backend, portions = SlowAtFirst(), [Portion(number, [number], []) for number in range(30)]
    with WorkerPool(2, backend) as pool:
        read = read_in_workers(pool, cast(PortionJob, None), portions)
        assert next(read) == (portions[0], READ)
        assert backend.begun == [0, 1, 2, 3]
        assert list(read) == [(portion, READ) for portion in portions[1:]]
    assert sorted(backend.begun) == list(range(30))


def test_a_cluster_has_a_worker_for_each_cpu_by_default(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int] = []

    def count(workers: int, *others: object) -> None:
        counted.append(workers)
        raise UsageError("enough")

    monkeypatch.setattr(model_workers, "connected", nullcontext)
    monkeypatch.setattr(model_workers, "cluster_nodes", lambda ray: [(3, 0)])
    monkeypatch.setattr(model_workers, "RayWorkers", lambda *settings: None)
    monkeypatch.setattr(model_workers, "WorkerPool", count)
    for given in (None, 2):
        with pytest.raises(UsageError, match="enough"):
            collected(pair, tmp_path, given, ray="auto")
    assert counted == [3, 2]


def test_loaded_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="workers is 2, and the target is a loaded LlamaForCausalLM"):
        collected(related(seed=1, spread=0.05), tmp_path, 2, tokenizer=word_tokenizer())
    with pytest.raises(UsageError, match="workers is 0; it must be a whole number of at least 1"):
        collected(related(seed=1, spread=0.05), tmp_path, 0, tokenizer=word_tokenizer())


@pytest.mark.slow
def test_an_error_of_a_worker_says_what_the_folder_keeps(tmp_path: Path) -> None:
    target, draft = related(seed=1, spread=0.05)
    target.model.norm.weight.data[0] = float("nan")
    for name, model in (("target", target), ("draft", draft)):
        model.save_pretrained(tmp_path / name)
        word_tokenizer().save_pretrained(tmp_path / name)
    with pytest.raises(NumericalError, match=r"prompts are counted from the task's (0|32)\). Folder .* keeps its 0"):
        collected((tmp_path / "target", tmp_path / "draft"), tmp_path / "out", 2)
