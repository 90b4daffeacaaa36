"""The projection of `benchmarks/workers.py`, and what `benchmarks/command.py` concludes from runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import command
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
