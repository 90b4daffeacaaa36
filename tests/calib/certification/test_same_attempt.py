"""The same command is the same attempt, whatever happened to its output folder, or was tuned on afterwards.

Whole calibrations of tiny models.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from fsd_calib.certification.attempt_ledger import AttemptLedger
from fsd_calib.tasks import Problem
from fsd_common.progress.chosen import Lines
from fsd_decoding.models.fingerprint import family_id
from fsd_decoding.profile.certificate import attempt_level
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from support.models import tiny_calibration
from support.models.tiny_calibration import far_apart, run_surely, task

pytestmark = pytest.mark.slow


def certified(profile: ThresholdProfile) -> dict[str, Any]:
    """Returns the fields that must be the same; what the clock says of speed need not."""
    found = profile.model_dump(include={"created", "rule", "score", "draft_length", "threshold"})
    return found | {"certificate": profile.certificate, "costs": profile.costs}


def test_an_attempt_does_not_depend_on_output_folders_and_files(tmp_path: Path) -> None:
    out, cache = tmp_path / "out", tmp_path / "cache"
    first = run_surely(out, cache)
    assert (first.certificate.certified, first.certificate.attempt) == (True, 1)
    (run,) = out.glob("run-*.json")
    run.unlink()
    assert certified(run_surely(out, cache)) == certified(first)
    shutil.rmtree(out)
    assert certified(run_surely(tmp_path / "another", cache)) == certified(first)
    _tune_on_certified(cache)
    shutil.rmtree(tmp_path / "another")
    assert certified(run_surely(out, cache)) == certified(first)


def test_another_goal_after_a_success_is_the_second_attempt(tmp_path: Path) -> None:
    profiles = [run_surely(tmp_path / "out", tmp_path / "cache", min_acc=acc) for acc in (0.5, 0.45)]
    first, second = (profile.certificate for profile in profiles)
    assert (first.attempt, first.delta) == (1, attempt_level(0.95, 1))
    assert (second.attempt, second.delta) == (2, attempt_level(0.95, 2))


def test_a_profile_has_the_numbers_of_the_verdict_that_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second run finds other outcomes, as rounding gives them: here by a grader that judges a few problems
    otherwise."""
    out, cache, log = tmp_path / "out", tmp_path / "cache", StringIO()
    first = run_surely(out, cache)

    def otherwise(problem: Problem, text: str) -> bool:
        return (len(text.split()) % 2 == 0) != (crc32(problem.question.encode()) % 10 == 0)

    monkeypatch.setattr(tiny_calibration, "even_words", otherwise)
    second = run_surely(out, cache, progress=Lines(log))
    assert "attempt 1 was decided by another process" in log.getvalue()
    assert certified(second) == certified(first)
    assert (second.accuracy, second.certificate.attempt) == (first.accuracy, 1)
    assert _tested(second) == _tested(first) != []
    alone = run_surely(tmp_path / "alone", cache, state=tmp_path / "state")
    assert alone.certificate != first.certificate


def test_another_grader_is_another_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same problems decoded by the same settings, judged otherwise: nothing of the first verdict holds."""
    cache, own = tmp_path / "cache", tiny_calibration.task
    assert run_surely(tmp_path / "one", cache).certificate.attempt == 1
    monkeypatch.setattr(tiny_calibration, "task", lambda count: replace(own(count), grading="another"))
    assert run_surely(tmp_path / "other", cache).certificate.attempt == 2
    assert run_surely(tmp_path / "again", cache).certificate.attempt == 2


def _tested(profile: ThresholdProfile) -> list[Any]:
    points = [point for point in profile.curve if point.lower_bound is not None]
    return [
        (point.setting.threshold, point.accuracy, point.retention, point.counts, point.problems) for point in points
    ]


def _tune_on_certified(state: Path) -> None:
    target, _ = far_apart()
    with AttemptLedger(state / "ledger.sqlite") as ledger:
        ledger.tuned_on(family_id(target), task(240).problems)
