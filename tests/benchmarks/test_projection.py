"""The projection of `benchmarks/workers.py`, and what `benchmarks/command.py` concludes from runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import command
import workers
from lib.common.results import write_json
from lib.workers.projection import Counts, Overheads, RealPair, project

FREE = Overheads(0.0, 0.0, 0.0)
PAIR = RealPair(spread=0.0)  # texts of one length


def test_one_row_in_one_worker_takes_the_sum_of_all_texts() -> None:
    counts = Counts(baseline=10, search=20, trials=4, certification=30, timed=0)
    expected = (10 + 15) * PAIR.text_seconds(False) + (20 + 15) * PAIR.text_seconds(True)
    assert project(PAIR, counts, FREE, 1, 1)["total"] == pytest.approx(expected)


def test_workers_share_all_but_timing() -> None:
    counts = Counts(baseline=6400, search=0, trials=1, certification=0, timed=100)
    alone, many = (project(PAIR, counts, FREE, workers, 32)["seconds"] for workers in (1, 8))
    assert alone["baseline"] == pytest.approx(200 * PAIR.text_seconds(False))
    assert alone["baseline"] / 8 <= many["baseline"] <= alone["baseline"] / 7
    assert many["timing"] == alone["timing"] > 0


def test_one_process_hands_nothing_out() -> None:
    """Texts of all lengths follow each other in its rows, so that these are full until the last."""
    counts = Counts(baseline=3000, search=0, trials=1, certification=0, timed=0)
    pair = RealPair()
    free, dear = (project(pair, counts, Overheads(batch, 0.0, 0.0), 1, 32)["seconds"]["baseline"] for batch in (0, 10))
    assert dear == free
    assert free == pytest.approx(3000 / 32 * pair.text_seconds(False), rel=0.05)


def test_certification_goes_on_in_portions() -> None:
    """However many workers there are, each of eight waits for the last text of the target, and of the setting."""
    counts = Counts(baseline=0, search=0, trials=1, certification=1600, timed=0)
    certified = project(PAIR, counts, FREE, 64, 32)["seconds"]["certification"]
    assert certified == pytest.approx(8 * (PAIR.text_seconds(False) + PAIR.text_seconds(True)))


def test_the_committed_projection_is_of_the_committed_measurements(tmp_path: Path) -> None:
    measured = json.loads((Path(workers.__file__).parent / "results" / "workers.json").read_text())
    fastest = max(one["results_per_second"] for one in measured["parent"])
    start = measured["starting"]["first_batch_seconds"]["median"]
    costs = Overheads(measured["seconds_per_batch"]["2"], 1 / fastest, start)
    write_json(workers.projection(costs), tmp_path / "again.json")
    again, committed = json.loads((tmp_path / "again.json").read_text()), measured["projection"]
    for job, before in zip(again.pop("jobs"), committed.pop("jobs"), strict=True):
        assert job["workers"] == before["workers"]
        assert job["seconds"] == pytest.approx(before["seconds"])
        assert job["total"] == pytest.approx(before["total"])
    assert again == committed


def test_a_slow_parent_is_the_limit() -> None:
    counts = Counts(baseline=1000, search=0, trials=1, certification=0, timed=0)
    slow = project(PAIR, counts, Overheads(0.0, 1.0, 0.0), 64, 32)["seconds"]
    assert slow["baseline"] >= 1000


def test_a_plan_is_judged_by_what_came_after_it() -> None:
    runs = [{"total_seconds": 110.0, "seconds": {"preparation": 10.0}, "planned_seconds": 80.0}]
    time, plan = command.claims(runs)
    assert time.measured == 110
    assert time.reached
    assert plan.measured == pytest.approx(0.2)
    assert plan.reached


def test_the_committed_run_has_what_a_projection_needs() -> None:
    file = Path(command.__file__).parent / "results" / "command.json"
    run: dict[str, Any] = json.loads(file.read_text())["runs"][0]
    counts = Counts.of(run)
    assert min(counts.baseline, counts.search, counts.trials, counts.certification, counts.timed) > 0
