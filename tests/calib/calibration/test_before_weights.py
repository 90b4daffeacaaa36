"""What a calibration refuses before it fetches or loads any weight, and the batch size that memory allows."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from fsd_calib import calibrate
from fsd_calib.calibration import memory
from fsd_calib.calibration.api import Calibration
from fsd_calib.options.goal import Goal
from fsd_calib.options.run_config import RunConfig
from fsd_calib.options.search_space import SearchSpace
from fsd_calib.report.plan import device_time, print_plan
from fsd_common.errors import UsageError
from fsd_common.progress.chosen import Lines
from fsd_data import pair_paths
from fsd_decoding.loading import load_tokenizer
from support.calibration.reports import paper, text_of
from support.hub_server import running_hub
from support.models import tiny_calibration
from support.models.tiny_models import llama, word_tokenizer

TARGET, DRAFT = map(str, pair_paths())


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What a decoder would have loaded; nothing is."""
    found: list[Any] = []

    def record(source: Any, *rest: Any) -> Any:
        found.append(source)
        raise UsageError("weights are loaded")

    monkeypatch.setattr("fsd_calib.calibration.engines.load_model", record)
    return found


def refusal(folder: Path, target: str = TARGET, draft: str = DRAFT, **keywords: Any) -> str:
    wanted: dict[str, Any] = {"min_acc": 0.98, "limit": 600, "cache": folder, "state": folder} | keywords
    with pytest.raises(UsageError) as refused:
        calibrate("arithmetic", target, draft, **wanted)
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.slow
def test_a_hopeless_goal_asks_the_hub_for_no_weights(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment["PYTHONPATH"] = os.pathsep.join(entry for entry in sys.path if entry)
    code = "from fsd_calib.cli.calibrate import main; main()"
    goal = ["--task", "arithmetic", "--limit", "60", "--min-acc", "0.99", "--plan"]
    models = ["--target", "acme/target", "--draft", "acme/draft", "--cache", "c", "--state", "s"]
    with running_hub({"acme/target": Path(TARGET), "acme/draft": Path(DRAFT)}) as hub:
        process = subprocess.run(
            [sys.executable, "-c", code, *goal, *models], cwd=tmp_path, capture_output=True, text=True, timeout=120,
            env=environment | {"HF_HOME": str(tmp_path / "hf"), "HF_ENDPOINT": hub.address},
        )  # fmt: skip
        requested = list(hub.requests)
    assert process.returncode == 2
    *steps, line = process.stderr.splitlines()  # what it does, where that takes seconds, before the error
    assert not [step for step in steps if "error" in step.lower() or "Traceback" in step]
    assert line.startswith("fsd-calibrate: error: there are ")
    assert "to show retention 0.99 by the last of 10 looks at level" in line
    assert any("config.json" in request for request in requested)
    assert [request for request in requested if "safetensors" in request] == []


def test_too_few_problems_for_the_goal_or_the_timing_are_refused_first(tmp_path: Path, loaded: list[Any]) -> None:
    assert "takes at least 162 even if nothing is lost" in refusal(tmp_path, limit=60)
    assert "leave 0 for" in refusal(tmp_path, limit=1)
    assert "problems to time 64 at a time" in refusal(tmp_path, min_acc=0.5, limit=100, serve_batch=64)
    assert loaded == []


def test_prompts_that_are_all_too_long_are_refused_first(tmp_path: Path, loaded: list[Any]) -> None:
    short = tmp_path / "short"
    shutil.copytree(TARGET, short)
    config = json.loads((short / "config.json").read_text(encoding="utf-8")) | {"max_position_embeddings": 8}
    (short / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert "all prompts of task arithmetic fill the models' context of 8 tokens; shorten them" in refusal(
        tmp_path, target=str(short)
    )
    assert loaded == []


def test_a_storage_that_is_no_regular_file_is_refused_first(tmp_path: Path, loaded: list[Any]) -> None:
    os.mkfifo(tmp_path / "ff")
    said = refusal(tmp_path, storage=str(tmp_path / "ff"))
    assert f"the study's journal {str(tmp_path / 'ff')!r} cannot be used: it is not a regular file" in said
    assert loaded == []


def with_memory(monkeypatch: pytest.MonkeyPatch, free: int | None) -> None:
    monkeypatch.setattr(memory, "available", lambda device: free)


@pytest.mark.slow
def test_too_little_memory_is_refused_with_the_arithmetic(
    tmp_path: Path, loaded: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_memory(monkeypatch, 5_000_000)
    message = refusal(tmp_path)
    assert message.startswith("decoding 1 at a time takes about target's weights 9 MB + drafts' weights 1 MB + joined ")
    assert "cpu has 5 MB free: even one problem at a time does not fit; use smaller models" in message
    with_memory(monkeypatch, 40_000_000)
    assert "serve_batch 24 needs that" in refusal(tmp_path, serve_batch=24)
    assert "the largest batch_size that fits is 4" in refusal(tmp_path, batch_size=64)
    assert loaded == []


@pytest.mark.thinned(every=2)
@pytest.mark.parametrize("device", ["foo", "cuda:99"])
def test_a_device_that_is_not_there_is_refused_first(device: str, tmp_path: Path, loaded: list[Any]) -> None:
    assert device in refusal(tmp_path, device=device)
    assert loaded == []


@pytest.mark.slow
def test_careful_timing_needs_the_models_twice(
    tmp_path: Path, loaded: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_memory(monkeypatch, 1)
    sums = [refusal(tmp_path, timing=timing) for timing in ("run", "careful")]
    assert [said.split(" + ")[0] for said in sums] == [
        f"decoding 1 at a time takes about target's weights {size} MB" for size in (9, 18)
    ]


@pytest.mark.slow
def test_the_batch_size_is_the_largest_that_fits(
    tmp_path: Path, loaded: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {free: planned(monkeypatch, free).batch_size for free in (24_000_000, 40_000_000, 60_000_000, None)}
    assert sizes == {24_000_000: 1, 40_000_000: 4, 60_000_000: 8, None: 32}
    for free, chosen in sizes.items():
        plan = planned(monkeypatch, free, chosen)
        assert plan.batch_size == chosen
        assert free is None or plan.total <= free
    with_memory(monkeypatch, 40_000_000)
    assert refusal(tmp_path) == "weights are loaded"


def planned(monkeypatch: pytest.MonkeyPatch, free: int | None, batch_size: int | None = None) -> memory.MemoryPlan:
    with_memory(monkeypatch, free)
    config = RunConfig(batch_size=batch_size, limit=600, device="cpu")
    calibration = Calibration("arithmetic", TARGET, DRAFT, Goal(min_acc=0.9), SearchSpace(), config)
    tokenizer = load_tokenizer(TARGET)
    _, found = calibration._checked(calibration._task(tokenizer), (), tokenizer)
    assert found is not None
    return found


def test_a_plan_names_the_memory_and_the_device_hours(tmp_path: Path) -> None:
    target, draft = tiny_calibration.far_apart()
    config = RunConfig(cache=tmp_path, state=tmp_path, device="cpu")
    decoding = SearchSpace(score="js", draft_length=4)
    plan = Calibration(
        tiny_calibration.task(240), target, draft, Goal(min_acc=0.7), decoding, config, word_tokenizer()
    ).plan()
    assert plan.memory is not None
    assert (plan.memory.batch_size, plan.devices) == (32, 1)
    assert plan.memory.need["target's weights"] == 0  # it is loaded already
    assert plan.device_seconds == plan.seconds
    assert replace(plan, devices=2).device_seconds == 2 * plan.seconds
    print_plan(plan, console := paper(80))
    text = " ".join(text_of(console).split())
    assert "Device-hours on one device (the CPU, all workers together): about" in text
    assert device_time(replace(plan, devices=8, on_cpu=False)).startswith("Device-hours on 8 devices at once: about")
    assert "more if all frozen settings are tested." in text
    assert "Estimated memory, 32 problems at a time on cpu" in text
    assert "KV caches" in text


@pytest.mark.slow
def test_what_cannot_be_estimated_is_said_and_no_refusal(tmp_path: Path) -> None:
    target, draft = tiny_calibration.far_apart()
    target.hf_device_map = {"": "cpu"}
    log = StringIO()
    config = RunConfig(cache=tmp_path, state=tmp_path, progress=Lines(log))
    decoding = SearchSpace(score="js", draft_length=4)
    plan = Calibration(
        tiny_calibration.task(240), target, draft, Goal(min_acc=0.7), decoding, config, word_tokenizer()
    ).plan()
    assert plan.memory is None
    assert "memory is not estimated: LlamaForCausalLM is spread over devices by a device map" in log.getvalue()


@pytest.mark.parametrize("target", [None, 42, object()])
def test_what_is_no_model_is_refused_as_by_a_decoder(target: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"the target is .*; it must be a causal LM"):
        calibrate(
            tiny_calibration.task(240), target, llama(seed=1), tokenizer=word_tokenizer(), min_acc=0.7, cache=tmp_path,
            state=tmp_path,
        )  # fmt: skip
