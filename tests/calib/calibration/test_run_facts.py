"""The file of a run's facts: a damaged one is noticed, whichever bit it is."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from fsd_calib.calibration.run_facts import Pace, RunFacts, Timings, begin_or_resume, first_rival, known_facts
from fsd_calib.certification.attempt_ledger import AttemptLedger, Run
from fsd_calib.certification.holdout import Holdout
from fsd_calib.measuring.evaluator import Evaluator
from fsd_calib.tasks import Problem
from fsd_collectors.replay.cost import CostModel
from fsd_decoding.profile.setting import Setting

PROBLEMS = [Problem(i, f"question {i}", f"question {i}", "1", None) for i in range(10)]
TIMINGS = Timings((CostModel(0.001, 0.004, 0.00002),), Pace(0.01, 0.02))
SD = Setting("sd", "js", 4)
AGAIN = Timings((CostModel(0.002, 0.005, 0.00003),), Pace(0.02, 0.03))


def holdout(ledger: AttemptLedger) -> Holdout:
    return Holdout(Evaluator(lambda *_: [], PROBLEMS, "certification"), ledger, "family", "claim", "these models")


def begun(folder: Path, timings: Timings, ledger: AttemptLedger | None = None) -> RunFacts:
    if ledger is not None:
        return begin_or_resume(folder, "name", "asked", holdout(ledger), lambda: timings)
    with AttemptLedger(None) as empty:
        return begin_or_resume(folder, "name", "asked", holdout(empty), lambda: timings)


def test_the_facts_of_a_run_are_measured_once(tmp_path: Path) -> None:
    assert begun(tmp_path, TIMINGS) == begun(tmp_path, AGAIN)


def test_the_sd_of_a_run_is_chosen_once(tmp_path: Path) -> None:
    first, late = begun(tmp_path, TIMINGS), begun(tmp_path, TIMINGS)
    one, other = (Setting("sd", "js", length) for length in (3, 4))
    assert first_rival(tmp_path, first, lambda: one) == one
    assert first_rival(tmp_path, late, lambda: other) == one  # of a process that chose at the same time
    assert first_rival(tmp_path, begun(tmp_path, AGAIN), pytest.fail) == one
    assert first_rival(None, first, lambda: other) == other


@pytest.mark.parametrize(
    "change", [{"rival": SD.values}, {"attempt": 2}, {"name": "other"}, {"digest": None}, {"digest": "0"}]
)
def test_an_edited_file_is_set_aside(change: dict[str, object], tmp_path: Path) -> None:
    begun(tmp_path, TIMINGS)
    (path,) = tmp_path.glob("run-*.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.warns(UserWarning, match=r"run-name\.json' is damaged .* set aside as run-name\.json\.damaged-1"):
        assert begun(tmp_path, AGAIN).timings == AGAIN
    assert begun(tmp_path, TIMINGS).timings == AGAIN


def test_the_facts_of_a_run_are_known_once_it_has_begun(tmp_path: Path) -> None:
    with AttemptLedger(None) as ledger:
        assert known_facts(tmp_path, "name", holdout(ledger)) is None
        assert list(tmp_path.iterdir()) == []
        facts = begun(tmp_path, replace(TIMINGS, compile="capture"), ledger)
        assert known_facts(tmp_path, "name", holdout(ledger)) == facts
        assert known_facts(None, "name", holdout(ledger)) is None
        ledger.open("family", "claim", PROBLEMS, "frozen", Run("name", facts.model_dump_json()))
        assert known_facts(None, "name", holdout(ledger)) == facts


def test_a_pace_is_of_a_number_of_workers(tmp_path: Path) -> None:
    pace = Pace(0.01, 0.02, workers=2, capture=3.0)
    found = begun(tmp_path, replace(TIMINGS, pace=pace))
    assert found.pace_of(2) == pace
    assert found.pace_of(1) is None


def test_a_file_without_a_digest_is_set_aside(tmp_path: Path) -> None:
    """Nothing tells whether it is sound."""
    begun(tmp_path, TIMINGS)
    (path,) = tmp_path.glob("run-*.json")
    content = json.loads(path.read_text())
    del content["digest"]
    path.write_text(json.dumps(content))
    with pytest.warns(UserWarning, match="it has no digest"):
        begun(tmp_path, AGAIN)


def test_after_an_attempt_the_facts_of_a_damaged_file_are_in_the_ledger(tmp_path: Path) -> None:
    with AttemptLedger(None) as ledger:
        facts = begun(tmp_path, TIMINGS, ledger)
        ledger.open("family", "claim", PROBLEMS, "frozen", Run("name", facts.model_dump_json()))
        (path,) = tmp_path.glob("run-*.json")
        path.write_text(path.read_text().replace("2e-05", ".10002"))
        with pytest.warns(UserWarning, match="is damaged"):
            assert begun(tmp_path, AGAIN, ledger) == facts


def test_the_file_of_another_run_is_set_aside(tmp_path: Path) -> None:
    with AttemptLedger(None) as empty:
        begin_or_resume(tmp_path, "other", "asked", holdout(empty), lambda: TIMINGS)
    (tmp_path / "run-other.json").rename(tmp_path / "run-name.json")
    with pytest.warns(UserWarning, match="it is of the run other"):
        assert begun(tmp_path, AGAIN).timings == AGAIN


def test_a_deeply_nested_file_is_set_aside(tmp_path: Path) -> None:
    (tmp_path / "run-name.json").write_text("[" * 200_000)
    with pytest.warns(UserWarning, match="nested too deeply"):
        begun(tmp_path, TIMINGS)


def test_what_is_no_regular_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "run-name.json")
    with pytest.warns(UserWarning, match="not a regular file"):
        begun(tmp_path, TIMINGS)


def test_a_file_of_a_terabyte_is_set_aside(tmp_path: Path) -> None:
    (tmp_path / "run-name.json").touch()
    os.truncate(tmp_path / "run-name.json", 1 << 40)
    with pytest.warns(UserWarning, match="not a regular file of at most"):
        begun(tmp_path, TIMINGS)
