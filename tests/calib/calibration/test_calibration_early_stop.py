"""Calibration with a predictor that ends drafts early, from the goal to a decoder that follows the profile."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from fsd_calib import SpeculativeDecoder, ThresholdProfile, calibrate, collect_traces, load_traces
from fsd_calib.calibration import predictor as training
from fsd_calib.calibration.api import Calibration
from fsd_calib.calibration.baseline import TRACED
from fsd_calib.options.goal import Goal
from fsd_calib.options.run_config import RunConfig
from fsd_calib.options.search_space import SearchSpace
from fsd_calib.tasks import Problem
from fsd_common.errors import UsageError
from fsd_common.progress.chosen import Lines
from fsd_decoding.profile.fields import CurvePoint
from fsd_predictors.predictor import Predictor
from fsd_predictors.training.api import train
from support.models import tiny_calibration
from support.models.tiny_models import word_tokenizer
from support.models.tiny_pair import related, saved

_PROBLEMS = 1350  # about 270 of them tuning: 128 to forecast with, the others to train on
_SETTINGS: dict[str, Any] = {"min_acc": 0.7, "draft_length": 6, "score": "js", "explore": True}


def run(folder: Path, predictor: Any, problems: int = 240, **changes: Any) -> ThresholdProfile:
    target, draft = related(seed=1, spread=0.05)
    return calibrate(
        tiny_calibration.task(problems), target=target, draft=draft, tokenizer=word_tokenizer(), out=folder / "out",
        cache=folder / "cache", state=folder / "cache", predictor=predictor, replace=True, **(_SETTINGS | changes),
    )  # fmt: skip


@pytest.fixture(scope="module")
def predictor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    target, draft = related(seed=1, spread=0.05)
    traces = collect_traces(
        tiny_calibration.task(300), target=target, draft=draft, tokenizer=word_tokenizer(), out=folder / "traces"
    )
    train(traces, folder / "predictor", trials=1, tokenizer=word_tokenizer())
    return folder / "predictor"


def planned(state: Path, predictor: Path | str, problems: tuple[Problem, ...], explore: bool = False) -> str:
    """The notes that the user sees."""
    target, draft = related(seed=1, spread=0.05)
    task, log = replace(tiny_calibration.task(300), problems=problems), StringIO()
    Calibration(
        task, target, draft, Goal(min_acc=0.7, explore=explore),
        SearchSpace(score="js", draft_length=6, predictor=predictor),
        RunConfig(cache=state, state=state, progress=Lines(log)), word_tokenizer(),
    ).plan()  # fmt: skip
    return log.getvalue()


def followed(made: ThresholdProfile, folder: Path) -> CurvePoint:
    """Saves the profile as if the fuzzy setting measured on most problems had been chosen, and returns that setting.

    Whether it is worth choosing is left to chance on models this small.
    """
    point = max((p for p in made.curve if p.setting.threshold is not None), key=lambda p: p.problems)
    changes = {"outcome": "untested", "threshold": point.setting.threshold, "lossy": True, "estimate": None,
               "draft_length": point.setting.draft_length}  # fmt: skip
    made.model_copy(update=changes).sealed().save(folder / "profile.json")
    return point


def decoder(profile: Any) -> SpeculativeDecoder:
    target, draft = related(seed=1, spread=0.05)
    return SpeculativeDecoder.from_pretrained(target, draft, profile=profile, tokenizer=word_tokenizer())


@pytest.mark.slow
def test_a_profile_stops_drafts_as_its_calibration_did(predictor: Path, tmp_path: Path) -> None:
    made = run(tmp_path, predictor)
    assert made.early_stop is not None
    assert made.early_stop.fingerprint == Predictor.load(predictor).fingerprint
    assert (tmp_path / "out" / made.early_stop.predictor).resolve() == predictor.resolve()
    for place in ("elsewhere/deep", "again"):  # a copy leads there too, and so does a copy of the copy
        moved = tmp_path / place / "profile.json"
        moved.parent.mkdir(parents=True)
        made.save(moved)
        made = ThresholdProfile.load(moved)
        assert made.early_stop is not None
        assert (moved.parent / made.early_stop.predictor).resolve() == predictor.resolve()
    point = followed(made, tmp_path / "out")
    with pytest.warns(UserWarning, match="never tested"):
        following = decoder(tmp_path / "out" / "profile.json")
    task = tiny_calibration.task(240)
    prompts, ids = [p.prompt for p in task.problems], [p.id for p in task.problems]
    early = following.generate(prompts, task.max_new_tokens, stop=task.stop, ids=ids)
    to_the_end = following.reconfigured(replace(following.decoding, stop_policy=None))
    whole = to_the_end.generate(prompts, task.max_new_tokens, stop=task.stop, ids=ids)
    for result in whole:  # less than 6 a round only where a text may not get as many
        assert result.drafted == 6 * result.rounds or result.emitted > task.max_new_tokens - 6
    assert sum(r.drafted for r in early) < sum(r.drafted for r in whole)
    emitted, rounds = sum(r.emitted for r in early), sum(r.rounds for r in early)
    assert point.tokens_per_round == pytest.approx(emitted / rounds, rel=0.1)  # the tuning part's, of all these


@pytest.mark.slow
def test_folders_move_together_and_another_predictor_is_refused(predictor: Path, tmp_path: Path) -> None:
    beside = tmp_path / "first" / "predictor"
    shutil.copytree(predictor, beside)
    followed(run(tmp_path / "first", beside), tmp_path / "first" / "out")
    for name in ("moved", "altered", "missing"):
        shutil.copytree(tmp_path / "first", tmp_path / name)
    shutil.rmtree(tmp_path / "first")
    with (tmp_path / "altered" / "predictor" / "next.txt").open("a") as file:
        file.write(" ")
    shutil.rmtree(tmp_path / "missing" / "predictor")
    with pytest.warns(UserWarning, match="never tested"):
        assert decoder(tmp_path / "moved" / "out" / "profile.json").stop_policy is not None
    for name, said in (("altered", r"next\.txt"), ("missing", "predictor")):
        with pytest.raises(UsageError, match=said):
            decoder(tmp_path / name / "out" / "profile.json")


@pytest.mark.slow
def test_auto_trains_once_on_problems_that_nothing_else_is_measured_on(tmp_path: Path) -> None:
    first = run(tmp_path, "auto", _PROBLEMS)
    assert first.early_stop is not None
    assert first.early_stop.predictor == "predictor"
    trained = Predictor.load(tmp_path / "out" / "predictor")
    assert sum(trained.facts.problems.model_dump().values()) < first.data.tuning
    written = (tmp_path / "out" / "predictor" / "predictor.json").stat().st_mtime_ns
    again = run(tmp_path, "auto", _PROBLEMS)
    assert (tmp_path / "out" / "predictor" / "predictor.json").stat().st_mtime_ns == written
    assert again.effort is not None
    assert (again.threshold, again.effort.total.decoded) == (first.threshold, 0)
    run(tmp_path, "auto", _PROBLEMS, rule="fsd-sd")
    assert Predictor.load(tmp_path / "out" / "predictor").facts.rule == "fsd-sd"
    with pytest.raises(UsageError, match="a predictor is trained for one rule"):
        run(tmp_path, "auto", _PROBLEMS, rule=("fsd-sd", "fsd-coupled"))


@pytest.mark.slow
def test_a_plan_trains_no_predictor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(training, "train", lambda *_, **__: pytest.fail("a plan trains"))
    problems = tiny_calibration.task(_PROBLEMS).problems
    notes = planned(tmp_path, "auto", problems)
    assert "a run trains its predictor first" in notes
    assert not (tmp_path / "predictors").exists()
    traced = [load_traces(folder).manifest.task.problems for folder in (tmp_path / "traces").glob("*/")]
    assert traced == [TRACED]  # and no text that only training reads
    with pytest.raises(UsageError, match="training a predictor takes at least"):
        planned(tmp_path, "auto", problems[:300])


@pytest.mark.slow
def test_problems_that_a_given_predictor_was_trained_on_certify_nothing(predictor: Path, tmp_path: Path) -> None:
    facts = Predictor.load(predictor).facts
    assert len(facts.trained_ids) == sum(facts.problems.model_dump().values())
    some = sorted(facts.trained_ids)[:20]
    problems = tuple(
        replace(p, part="certification") if p.id in some else p for p in tiny_calibration.task(300).problems
    )
    note = "20 of 2.. certification problems were tuned or trained on before and are left out"
    assert re.search(note, planned(tmp_path, predictor, problems))
    assert "tuned on before" not in planned(tmp_path, predictor, problems, explore=True)  # nothing is to be certified


@pytest.mark.slow
def test_a_predictor_of_something_else_is_refused_before_the_work(predictor: Path, tmp_path: Path) -> None:
    for changes, message in (
        ({"score": "tv"}, "the predictor knows scores js, not 'tv'"),
        ({"rule": "fsd-sd"}, "the predictor is for rule 'fsd-coupled', not 'fsd-sd'"),
        ({"temperature": 0.7}, "the predictor was trained on texts sampled with"),
    ):
        with pytest.raises(UsageError, match=message):
            run(tmp_path, predictor, **changes)
    target, other = related(seed=1, spread=0.2)
    with pytest.raises(UsageError, match="the predictor's draft is"):
        calibrate(
            tiny_calibration.task(240), target=target, draft=other, tokenizer=word_tokenizer(), cache=tmp_path,
            predictor=predictor, **_SETTINGS,
        )  # fmt: skip
    with pytest.raises(UsageError, match=r"there are \d+ tuning problems; training a predictor takes at least 178"):
        run(tmp_path, "auto")
    with pytest.raises(UsageError, match="predictor"):
        run(tmp_path, tmp_path / "nowhere")


@pytest.mark.slow
def test_fresh_processes_time_drafts_that_end_early_too(
    predictor: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They check that the policy has the identity, costs included, that it has in this process."""
    monkeypatch.setattr("fsd_calib.calibration.timing._PROCESSES", 2)
    target, draft = saved(tmp_path)
    made = calibrate(
        tiny_calibration.task(240), target=target, draft=draft, predictor=predictor, timing="careful", **_SETTINGS
    )
    assert made.early_stop is not None
    assert (made.speed.processes, made.speed.part) == (2, "tuning")
