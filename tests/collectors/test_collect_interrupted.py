"""Runs that were interrupted, or ran out of memory, keep their finished portions and continue."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fsd_calib import load_traces
from fsd_collectors.collection.measures import Measures
from fsd_collectors.store.verifying import verify
from fsd_common.errors import UsageError
from support.models.tiny_pair import related
from support.models.tiny_task import TinyProblem, TinyTask, tiny_task
from support.traces.collecting import WAYS, collect


@pytest.fixture(scope="module")
def pair() -> tuple[Any, Any]:
    return related(seed=1, spread=0.05)


class _Stopping:
    """Progress that raises KeyboardInterrupt after a number of completions."""

    def __init__(self, after: int) -> None:
        self._left = after

    def step(self, title: str, total: int) -> Any:
        return nullcontext(self._advance)

    def _advance(self, done: int) -> None:
        self._left -= done
        if self._left < 0:
            raise KeyboardInterrupt


@pytest.mark.thinned(every=2)
@pytest.mark.parametrize("way", ["along the target", "sd"])
def test_an_interrupted_run_continues(way: str, pair: tuple[Any, Any], tmp_path: Path) -> None:
    task, settings = tiny_task(70, max_new_tokens=4), {"batch_size": 2, "temperature": 1.0, **WAYS[way]}
    whole = collect(tmp_path / "whole", pair, task, **settings)
    assert whole.manifest.portion == 32
    for after in (5, 40, 71):
        with pytest.raises(KeyboardInterrupt) if after < 70 else nullcontext():
            collect(tmp_path / "again", pair, task, progress=_Stopping(after), **settings)
    resumed = load_traces(tmp_path / "again")
    assert resumed.manifest == whole.manifest
    assert resumed.complete
    assert resumed.tokens.to_table().equals(whole.tokens.to_table())
    assert resumed.completions.to_table().equals(whole.completions.to_table())


@pytest.mark.slow
def test_a_run_continues_with_the_same_models_of_another_folder(tmp_path: Path) -> None:
    task, (target, draft) = tiny_task(70, max_new_tokens=8), related(seed=1, spread=0.05)
    settings = {"batch_size": 2, "temperature": 1.0}
    target.config._name_or_path, draft.config._name_or_path = "/one/target", "/one/draft"
    with pytest.raises(KeyboardInterrupt):
        collect(tmp_path, (target, draft), task, progress=_Stopping(40), **settings)
    target.config._name_or_path, draft.config._name_or_path = "/other/big", "/other/small"
    continued = collect(tmp_path, (target, draft), task, **settings)
    assert (continued.manifest.target.id, continued.manifest.draft.id) == ("/one/target", "/one/draft")
    assert continued.complete
    assert verify(tmp_path) == []
    assert collect(tmp_path, (target, draft), task, **settings).manifest == continued.manifest


def test_a_run_does_not_continue_with_one_row_of_another_model(tmp_path: Path) -> None:
    task, (target, draft) = tiny_task(5, max_new_tokens=8), related(seed=1, spread=0.05)
    collect(tmp_path, (target, draft), task)
    with torch.no_grad():
        target.model.embed_tokens.weight[7] *= 1.5
    with pytest.raises(UsageError, match=r"holds traces of another run: target\.fingerprint"):
        collect(tmp_path, (target, draft), task)


@pytest.mark.parametrize("prompt", ["w3 w4 w5", "w3"])
def test_a_run_continues_only_with_the_same_prompts(prompt: str, pair: tuple[Any, Any], tmp_path: Path) -> None:
    """A chat template that contains the date makes other prompts of the same questions the next day."""

    @dataclass(frozen=True)
    class Dated(TinyProblem):
        @property
        def prompt(self) -> str:
            return prompt

    problem = TinyProblem(1, "w3")
    collect(tmp_path, pair, TinyTask((problem,)))
    again = TinyTask((Dated(1, "w3"),))
    with pytest.raises(UsageError, match=r"task\.prompts") if prompt != problem.prompt else nullcontext():
        collect(tmp_path, pair, again)


@pytest.mark.thinned(every=2)
@pytest.mark.parametrize("way", ["along the target", "sd"])
def test_out_of_memory_errors_name_the_finished_portions(
    way: str, pair: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, settings = tiny_task(40, max_new_tokens=8), {"batch_size": 2, **WAYS[way]}
    whole, left = Measures.__call__, iter(range(12 if way == "sd" else 18))

    def measure(self: Measures, at: Any) -> Any:
        if next(left, None) is None:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return whole(self, at)

    monkeypatch.setattr(Measures, "__call__", measure)
    with pytest.raises(UsageError) as caught:
        collect(tmp_path, pair, task, **settings)
    monkeypatch.undo()
    kept = len(load_traces(tmp_path).shards)
    assert kept > 0
    assert "out of memory with batch_size 2; try batch_size 1" in str(caught.value)
    assert f"Folder {str(tmp_path)!r} keeps its {kept} finished portions" in str(caught.value)
    assert verify(tmp_path) == []
    assert collect(tmp_path, pair, task, **settings).complete


def test_a_run_does_not_continue_with_other_groups(pair: tuple[Any, Any], tmp_path: Path) -> None:
    """They decide the part of each problem, which rows are stored with."""
    task = tiny_task(5, max_new_tokens=8)
    collect(tmp_path, pair, task)
    grouped = replace(task, problems=tuple(replace(problem, group=1) for problem in task.problems))
    with pytest.raises(UsageError, match=r"holds traces of another run: task\.prompts"):
        collect(tmp_path, pair, grouped)
