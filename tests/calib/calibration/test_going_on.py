"""Calibrations that go on from an attempt with fewer problems: no search, the same settings, one verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fsd_calib.calibration.api import Calibration
from fsd_calib.certification.attempt_ledger import AttemptLedger
from fsd_calib.certification.marking import LEDGER
from fsd_calib.engines.own import OwnEngine
from fsd_calib.options.goal import Goal
from fsd_calib.options.run_config import RunConfig
from fsd_calib.options.search_space import SearchSpace
from fsd_calib.report.plan import attempt_line, pilot_summary
from fsd_calib.report.verdict import verdict
from fsd_collectors.replay.cost import CostModel
from fsd_common.errors import UsageError
from fsd_common.progress.base import Silent
from fsd_decoding.models.fingerprint import family_id
from fsd_decoding.profile.certificate import attempt_level
from support.models import tiny_calibration
from support.models.tiny_calibration import far_apart
from support.models.tiny_models import word_tokenizer


@pytest.fixture(autouse=True)
def costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of no clock: what is searched and tested must not depend on what else runs."""
    monkeypatch.setattr(OwnEngine, "costs", lambda *_: CostModel(0.001, 0.003, 0.0))


class Notes(Silent):
    """Keeps what is noted."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.lines.append(text)


def calibration(folder: Path, problems: int, notes: Notes | None = None, **run: Any) -> Calibration:
    settings: dict[str, Any] = {
        "out": folder / "out", "cache": folder, "state": folder, "timing": "none", "trials": 3, "replace": True, **run,
    }  # fmt: skip
    return Calibration(
        tiny_calibration.task(problems), *far_apart(), Goal(min_acc=0.95, serve_batch=8),
        SearchSpace(score="js", draft_length=4), RunConfig(**settings, progress=notes or Silent()),
        word_tokenizer(),
    )  # fmt: skip


@pytest.mark.slow
def test_with_more_problems_it_goes_on_and_nothing_is_searched(tmp_path: Path) -> None:
    first = calibration(tmp_path, 240).run()
    assert not first.certificate.certified  # half of all texts are right by chance, so that a fuzzy rule's flip
    assert first.certificate.attempt == 1
    notes = Notes()
    plan = calibration(tmp_path, 480).plan()
    assert plan.goes_on is not None
    assert "goes on from attempt 1" in pilot_summary(plan)
    assert "beside the 0.045 of attempt 1" in attempt_line(plan)
    second = calibration(tmp_path, 480, notes).run()
    (note,) = [line for line in notes.lines if line.startswith("goes on from attempt 1")]
    assert note.endswith("extend=False searches anew")
    assert (second.certificate.attempt, second.certificate.extends) == (2, (1,))
    assert second.certificate.delta == pytest.approx(attempt_level(0.95, 1) + attempt_level(0.95, 2))
    assert (second.effort and second.effort.trials) == 0
    assert set(first.certificate.looks) < set(second.certificate.looks)
    assert {p.setting.threshold for p in second.curve if p.source == "certification"} <= {
        p.setting.threshold for p in first.curve if p.source == "certification"
    } | {None}
    assert "going on from attempt 1" in verdict(second)
    again = calibration(tmp_path, 480).run()
    assert again.certificate == second.certificate


@pytest.mark.slow
def test_who_does_not_want_to_go_on_searches(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is nothing to go on from"):
        calibration(tmp_path, 240, extend=True).run()
    calibration(tmp_path, 240).run()
    searched = calibration(tmp_path, 480, extend=False).run()
    assert searched.certificate.extends == ()
    assert searched.effort is not None
    assert searched.effort.trials > 0
    assert calibration(tmp_path, 480).run().certificate == searched.certificate  # it has begun
    assert calibration(tmp_path, 2400).plan().goes_on is None  # more than four times as many
    assert calibration(tmp_path, 2400, extend=True).plan().goes_on is not None


@pytest.mark.slow
def test_a_third_goes_on_from_both_and_the_same_command_again_is_the_same_attempt(tmp_path: Path) -> None:
    for problems in (240, 480):
        calibration(tmp_path, problems).run()
    third = calibration(tmp_path, 960, out=tmp_path / "third").run()
    assert (third.certificate.attempt, third.certificate.extends) == (3, (1, 2))
    levels = [attempt_level(0.95, number) for number in (1, 2, 3)]
    assert third.certificate.delta == pytest.approx(sum(levels))
    with AttemptLedger(tmp_path / LEDGER) as ledger:  # what was tuned on since changes nothing
        ledger.tuned_on(family_id(far_apart()[0]), tiny_calibration.task(960).problems[-5:])
    for folder in ("third", "elsewhere"):
        again = calibration(tmp_path, 960, out=tmp_path / folder).run()
        assert (again.certificate.attempt, again.certificate.extends) == (3, (1, 2))
    assert calibration(tmp_path, 480, out=tmp_path / "second").run().certificate.attempt == 2


@pytest.mark.parametrize(
    ("goal", "space", "named"),
    [
        (Goal(min_acc=0.9, explore=True), SearchSpace(), "explore tests nothing"),
        (Goal(min_speed=10.0), SearchSpace(), "min_speed tests nothing"),
        (Goal(pareto=True), SearchSpace(), "pareto tests nothing"),
        (Goal(min_acc=0.9, guarantee="dataset"), SearchSpace(), "guarantee 'dataset' is about no others"),
        (Goal(min_acc=0.9), SearchSpace(predictor="folder"), "what predictor does is learned anew"),
        (Goal(min_acc=0.9), SearchSpace(threshold_policy="schedule"), "what threshold_policy does is learned anew"),
    ],
    ids=str,
)
def test_what_cannot_go_on_is_refused_at_once(goal: Goal, space: SearchSpace, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        Calibration("gsm8k", "target", "draft", goal, space, RunConfig(extend=True))
