"""Calibrations with workers: the profile of one process, and refusals before any model is loaded. Tiny models."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from fsd_calib import ThresholdProfile, calibrate
from fsd_calib.calibration import output_folder, prepare
from fsd_calib.calibration.api import Calibration
from fsd_calib.calibration.plan import Plan
from fsd_calib.measuring.evaluator import CachedDecoder
from fsd_calib.measuring.look import Look
from fsd_calib.options.goal import Goal
from fsd_calib.options.run_config import RunConfig
from fsd_calib.options.search_space import SearchSpace
from fsd_collectors.replay.cost import CostModel
from fsd_common.errors import UsageError
from fsd_decoding.loading import load_model
from fsd_decoding.workers import model_workers
from fsd_decoding.workers.model_workers import Capacity, Sources, open_workers
from support.calibration.fixed_speeds import fix_speeds
from support.calibration.untimed import untimed
from support.models import tiny_calibration
from support.models.tiny_models import word_tokenizer
from support.models.tiny_pair import saved
from support.worker_processes import worker_processes


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return saved(tmp_path_factory.mktemp("pair"))


def calibrated(models: tuple[Any, Any], folder: Path, **changes: Any) -> ThresholdProfile:
    settings: dict[str, Any] = {"min_acc": 0.7, "draft_length": (2, 4), "score": "js", "trials": 4} | changes
    return calibrate(
        tiny_calibration.task(240), models[0], models[1], dtype="float64", device="cpu", batch_size=8,
        out=folder / "out", cache=folder / "cache", state=folder / "state", **settings,
    )  # fmt: skip


def ticks(process: int) -> int:
    """CPU time of a process, in clock ticks."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def decodings(folder: Path) -> list[Any]:
    with sqlite3.connect(folder / "cache" / "decodings.sqlite") as file:
        return sorted(
            file.execute("SELECT hex(key), problem, hex(prompt), threshold, text, rounds FROM decodings"), key=str
        )


@pytest.mark.slow
def test_the_profile_and_the_cache_do_not_depend_on_workers(
    models: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fix_speeds(monkeypatch, 1.5)
    alone, together = (calibrated(models, tmp_path / str(count), workers=count) for count in (1, 2))
    assert untimed(together) == untimed(alone)
    assert decodings(tmp_path / "2") == decodings(tmp_path / "1")
    assert worker_processes() == []


@pytest.mark.slow
def test_speeds_are_timed_by_this_process_while_no_worker_is_at_work(
    models: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    emitted, watched, spent = CachedDecoder.emitted, 0, 0

    def watch(decode: CachedDecoder, *args: Any) -> int:
        nonlocal watched, spent
        before, here = list(map(ticks, worker_processes())), ticks(os.getpid())
        tokens = emitted(decode, *args)
        watched += ticks(os.getpid()) - here
        spent += sum(map(ticks, worker_processes())) - sum(before)
        assert len(before) == 2
        return tokens

    monkeypatch.setattr(CachedDecoder, "emitted", watch)
    calibrated(models, tmp_path, workers=2)
    assert watched > 20
    assert spent < 0.2 * watched  # two that decode take twice as much


@pytest.mark.slow
def test_the_plan_is_of_the_workers_that_there_are(
    models: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two decode twice as much, where a round takes a second whatever the threads."""
    measured: list[Look] = []

    def a_second(look: Look) -> float:
        measured.append(look)
        return 1.0

    monkeypatch.setattr(Look, "round", property(a_second))
    monkeypatch.setattr(Look, "prefill", 0.0)
    monkeypatch.setattr(prepare, "_costs", lambda *_: CostModel(0.2, 1.0, 0.01))

    def planned(cores: int) -> Plan:
        monkeypatch.setattr(model_workers, "cores", lambda: cores)  # a worker each, if it came to that
        out, cache, state = (tmp_path / name for name in ("out", "cache", "state"))
        config = RunConfig(batch_size=8, device="cpu", dtype="float64", out=out, cache=cache, state=state)
        decoding = SearchSpace(score="js", draft_length=2)
        calibration = Calibration(tiny_calibration.task(240), *models, Goal(min_acc=0.7), decoding, config)
        with output_folder.made(out):
            output_folder.claim(out, calibration)  # as a run that is to go on, whose timings are kept
        return calibration.plan()

    plans = planned(1), planned(2)
    alone, together = (plan.steps[:3] for plan in plans)
    assert [(plan.devices, plan.on_cpu) for plan in plans] == [(1, True), (1, True)]
    taken = len(measured)
    assert taken > 0
    assert [step.name for step in alone] == ["baseline", "search", "certification"]
    assert [step.seconds for step in together] == pytest.approx([step.seconds / 2 for step in alone])
    assert planned(1).steps[:3] == alone
    assert len(measured) == taken
    assert len(list((tmp_path / "out").glob("run-*.json"))) == 1


@pytest.mark.thinned(every=3)
@pytest.mark.parametrize(("workers", "gpus"), [(8, 8), (3, 3), (16, 8)])
def test_workers_are_spread_over_as_many_gpus_as_there_are(
    workers: int, gpus: int, models: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine with eight."""
    monkeypatch.setattr(model_workers, "gpu_ids", lambda sources: tuple("01234567"))
    sources = Sources(str(models[0]), (str(models[1]),))
    with open_workers(workers, None, sources, Capacity(1000, 8)) as opened:
        assert opened is not None
        assert opened.gpus == gpus


@pytest.mark.parametrize("changes", [{"workers": 2}, {"ray": "auto"}])
def test_loaded_models_are_refused(models: tuple[Path, Path], tmp_path: Path, changes: dict[str, Any]) -> None:
    loaded = [load_model(place, "cpu", None) for place in models]
    with pytest.raises(UsageError, match="the target is a loaded LlamaForCausalLM, which a worker process cannot load"):
        calibrated((loaded[0], loaded[1]), tmp_path, tokenizer=word_tokenizer(), **changes)


def test_a_number_below_one_is_refused(models: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="workers is 0; it must be a whole number of at least 1"):
        calibrated(models, tmp_path, workers=0)
