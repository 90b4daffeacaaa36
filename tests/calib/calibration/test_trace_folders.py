"""Traces in the cache of calibrations: the same run finds them again, however many problems fit in memory by then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from fsd_calib.calibration.baseline import traces_along_target
from fsd_calib.calibration.session import Session, open_session
from fsd_calib.engines.own import OwnEngine
from fsd_calib.options.run_config import RunConfig
from fsd_calib.tasks.base import Problem, Task
from fsd_collectors.collection import run
from fsd_common.progress.base import Advance, Silent
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.sampling import Sampling
from support.models import tiny_calibration
from support.models.tiny_models import word_tokenizer


class Interrupting(Silent):
    """Interrupts a step when more than this many are done."""

    def __init__(self, done: int) -> None:
        self._left = done

    @contextmanager
    def step(self, title: str, total: int) -> Iterator[Advance]:
        def advance(done: int) -> None:
            self._left -= done
            if self._left < 0:
                raise KeyboardInterrupt

        yield advance


TASK = tiny_calibration.task(225)


@contextmanager
def session(cache: Path, batch_size: int, task: Task = TASK, **settings: Any) -> Iterator[Session]:
    decoder = SpeculativeDecoder(*tiny_calibration.far_apart(), word_tokenizer(), **{"seed": 0, **settings})
    config = RunConfig(cache=cache, state=cache, batch_size=batch_size)
    with open_session(OwnEngine(decoder, task), task, config) as made:
        yield made


def traced(cache: Path, batch_size: int, **changes: Any) -> tuple[Path, int, dict[int, str]]:
    """The folder of the traces, the batch size of their run, and their texts by problem."""
    with session(cache, batch_size) as made, traces_along_target(made, ("js",), problems(made, **changes)) as traces:
        assert traces.complete
        rows = traces.completions.to_table(columns=["problem", "text"]).to_pylist()
        return traces.path, traces.manifest.batch_size, {row["problem"]: row["text"] for row in rows}


def interrupted(cache: Path, batch_size: int, task: Task = TASK) -> None:
    """Collects one portion of two."""
    with session(cache, batch_size, task) as made:
        stopped = traces_along_target(replace(made, progress=Interrupting(35)), ("js",), problems(made))
        with pytest.raises(KeyboardInterrupt):
            stopped.__enter__()
    assert len([*cache.rglob("completions/*.parquet")]) == 1


def problems(made: Session, **changes: Any) -> list[Problem]:
    return [replace(problem, **changes) for problem in made.tuning.problems[:40]]


@pytest.mark.slow
def test_a_run_that_chooses_another_batch_size_finds_its_traces(tmp_path: Path) -> None:
    """The choice depends on the memory that is free; forecasts, and with them the search, depend on the traces."""
    first = traced(tmp_path, 4)
    assert first[1] == 4
    assert traced(tmp_path, 2) == traced(tmp_path, 16) == first


def test_an_interrupted_collection_goes_on_with_its_batch_size(tmp_path: Path) -> None:
    interrupted(tmp_path, 2)
    assert traced(tmp_path, 4)[1] == 2


@pytest.mark.slow
def test_a_batch_that_does_not_fit_any_more_is_not_continued(tmp_path: Path) -> None:
    interrupted(tmp_path, 4)
    assert traced(tmp_path, 2)[1] == 2


@pytest.mark.thinned(every=2)
@pytest.mark.parametrize("finished", [True, False])
def test_what_is_not_the_models_or_the_data_leaves_traces_as_they_are(
    finished: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data's place and name, and versions that rows do not depend on; unfinished traces are compared, too."""
    elsewhere = replace(TASK, source="/other/path.jsonl", name="other")
    with monkeypatch.context() as earlier:
        earlier.setattr(run, "version", lambda name: "0.1" if name in ("fsd-calib", "pyarrow") else version(name))
        earlier.setattr("platform.python_version", lambda: "3.12.0")
        if finished:
            traced(tmp_path, 4)
        else:
            interrupted(tmp_path, 4)
    with session(tmp_path, 4, elsewhere) as made, traces_along_target(made, ("js",), problems(made)) as traces:
        assert traces.complete
        assert traces.manifest.versions["pyarrow"] == "0.1"
        assert traces.manifest.task.source == TASK.source


SAMPLED: dict[str, Any] = {"sampling": Sampling(0.8, top_k=5)}


@pytest.mark.thinned(every=3)
@pytest.mark.parametrize("changes", [{"on": "processed"}, {"seed": 1}, {"sampling": Sampling(0.8, top_k=4)}])
def test_other_settings_have_traces_of_their_own_and_not_an_error(changes: dict[str, Any], tmp_path: Path) -> None:
    folders = []
    for settings in (SAMPLED, SAMPLED | changes):
        with session(tmp_path, 4, **settings) as made, traces_along_target(made, ("js",), problems(made)) as traces:
            folders.append(traces.path)
    assert len({*folders}) == 2


def test_greedy_traces_are_the_same_under_any_seed(tmp_path: Path) -> None:
    for seed in (0, 1):
        with session(tmp_path, 4, seed=seed) as made, traces_along_target(made, ("js",), problems(made)) as traces:
            assert traces.manifest.seed == 0


@pytest.mark.slow
def test_versions_that_rows_depend_on_have_traces_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(run, "version", lambda name: "0.1" if name == "torch" else version(name))
        interrupted(tmp_path, 4)
        first = traced(tmp_path, 4)
    assert traced(tmp_path, 4)[0] != first[0]


@pytest.mark.slow
def test_a_manifest_that_is_nested_too_deeply_is_set_aside(tmp_path: Path) -> None:
    folder, *first = traced(tmp_path, 4)
    (folder / "manifest.json").write_text("[" * 100_000)
    with pytest.warns(UserWarning, match=r"are damaged \(.*nested too deeply\); they are renamed"):
        assert traced(tmp_path, 4) == (folder, *first)
    assert folder.with_name(f"{folder.name}.damaged-1").is_dir()


@pytest.mark.thinned(every=2)
@pytest.mark.parametrize("changes", [{"prompt": "a b"}, {"reference": "c"}])
def test_other_prompts_or_references_have_traces_of_their_own(changes: dict[str, str], tmp_path: Path) -> None:
    assert traced(tmp_path, 4, **changes)[0] != traced(tmp_path, 4)[0]
