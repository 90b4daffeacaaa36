"""Workers of a study: whose trials are waited for, and whose are failed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.study import Study
from optuna.trial import TrialState

from fsd_calib.search import sampler
from fsd_calib.search.sampler import KEY, Workers, fail_dead_trials, heartbeats
from fsd_calib.search.study_storage import open_journal
from fsd_calib.storage import this_process

HERE: dict[str, Any] = this_process()
DEAD: dict[str, Any] = HERE | {"process": 2**22 + 1}  # beyond the largest id
ELSEWHERE: dict[str, Any] = DEAD | {"boot": "another"}


def study_of(*named: Mapping[str, Any] | None) -> Study:
    """Returns a study with a running trial of each worker; None: it has not named itself."""
    study = optuna.create_study()
    for worker in named:
        trial = study.ask()
        if worker is not None:
            trial.set_user_attr(KEY, dict(worker))
    return study


def running(study: Study, seen: Workers) -> list[int]:
    return [trial.number for trial in seen.running(study.get_trials(deepcopy=False))]


def test_trials_of_dead_processes_are_failed_and_no_others() -> None:
    study = study_of(HERE, DEAD, ELSEWHERE, None)
    assert running(study, Workers()) == [0, 2, 3]
    fail_dead_trials(study)
    assert [t.state.name for t in study.trials] == ["RUNNING", "FAIL", "RUNNING", "RUNNING"]


def test_a_silent_trial_is_ignored_but_not_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_SILENT", "_UNNAMED"):
        monkeypatch.setattr(sampler, name, 0.3)
    study, seen = study_of(HERE, ELSEWHERE, None), Workers()
    assert running(study, seen) == [0, 1, 2]
    time.sleep(0.4)
    assert running(study, seen) == [0]
    fail_dead_trials(study)
    assert {t.state for t in study.trials} == {TrialState.RUNNING}


@pytest.mark.slow
def test_a_trial_with_heartbeats_is_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Through a journal, as another machine would see it."""
    monkeypatch.setattr(sampler, "_SILENT", 1.0)
    journals = [open_journal(tmp_path / "study.log") for _ in range(2)]
    trial = optuna.create_study(storage=journals[0], study_name="study").ask()
    trial.set_user_attr(KEY, ELSEWHERE)
    study, seen = optuna.load_study(storage=journals[1], study_name="study"), Workers()
    with heartbeats(trial, 0.1):
        for _ in range(8):
            assert running(study, seen) == [0]
            time.sleep(0.25)
    time.sleep(1.2)
    running(study, seen)  # the last heartbeat
    time.sleep(1.2)
    assert running(study, seen) == []


@pytest.mark.parametrize("off", [timedelta(days=-400), timedelta(hours=9)])
def test_clocks_of_other_machines_do_not_matter(off: timedelta) -> None:
    """A trial begins at a time without a zone, by the clock of its machine."""
    began = (datetime.now(UTC) + off).replace(tzinfo=None)
    study = optuna.create_study()
    for worker in (ELSEWHERE, None):
        template = optuna.trial.create_trial(
            state=TrialState.RUNNING, user_attrs={} if worker is None else {KEY: worker}
        )
        template.datetime_start = began
        study._storage.create_new_trial(study._study_id, template_trial=template)
    assert {t.datetime_start for t in study.trials} == {began}
    assert running(study, Workers()) == [0, 1]
