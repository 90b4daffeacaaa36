"""Traces in the cache of calibrations: the same run finds them again, however many problems fit in memory by then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fsd_calib.calibration.baseline import traces_along_target
from fsd_calib.calibration.run_config import RunConfig
from fsd_calib.calibration.session import Session, open_session
from fsd_calib.progress import Advance, Silent
from fsd_calib.tasks.base import Problem
from fsd_collectors.collection import run_facts
from fsd_decoding.decoder import SpeculativeDecoder
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


@contextmanager
def session(cache: Path, batch_size: int) -> Iterator[Session]:
    decoder = SpeculativeDecoder(*tiny_calibration.far_apart(), word_tokenizer(), seed=0)
    config = RunConfig(cache=cache, state=cache, batch_size=batch_size)
    with open_session(decoder, tiny_calibration.task(150), config) as made:
        yield made


def traced(cache: Path, batch_size: int, **changes: Any) -> tuple[Path, int, dict[int, str]]:
    """The folder of the traces, the batch size of their run, and their texts by problem."""
    with session(cache, batch_size) as made, traces_along_target(made, ("js",), problems(made, **changes)) as traces:
        assert traces.complete
        rows = traces.completions.to_table(columns=["problem", "text"]).to_pylist()
        return traces.path, traces.manifest.batch_size, {row["problem"]: row["text"] for row in rows}


def interrupted(cache: Path, batch_size: int) -> None:
    """Collects one portion of two."""
    with session(cache, batch_size) as made:
        stopped = traces_along_target(replace(made, progress=Interrupting(35)), ("js",), problems(made))
        with pytest.raises(KeyboardInterrupt):
            stopped.__enter__()
    assert len([*cache.rglob("completions/*.parquet")]) == 1


def problems(made: Session, **changes: Any) -> list[Problem]:
    return [replace(problem, **changes) for problem in made.tuning.problems[:40]]


def test_a_run_that_chooses_another_batch_size_finds_its_traces(tmp_path: Path) -> None:
    """The choice depends on the memory that is free; forecasts, and with them the search, depend on the traces."""
    first = traced(tmp_path, 4)
    assert first[1] == 4
    assert traced(tmp_path, 2) == traced(tmp_path, 16) == first


def test_an_interrupted_collection_goes_on_with_its_batch_size(tmp_path: Path) -> None:
    interrupted(tmp_path, 2)
    assert traced(tmp_path, 4)[1] == 2


def test_a_batch_that_does_not_fit_any_more_is_not_continued(tmp_path: Path) -> None:
    interrupted(tmp_path, 4)
    assert traced(tmp_path, 2)[1] == 2


def test_traces_of_other_versions_of_libraries_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What they hold depends on versions that are in the folder's name."""
    with monkeypatch.context() as earlier:
        earlier.setattr(run_facts, "version", lambda name: "0.1")
        first = traced(tmp_path, 4)
    assert traced(tmp_path, 4) == first


@pytest.mark.parametrize("changes", [{"prompt": "a b"}, {"reference": "c"}])
def test_other_prompts_or_references_have_traces_of_their_own(changes: dict[str, str], tmp_path: Path) -> None:
    assert traced(tmp_path, 4, **changes)[0] != traced(tmp_path, 4)[0]
