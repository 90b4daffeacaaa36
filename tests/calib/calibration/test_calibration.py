"""Calibrations of tiny models: what counts as another attempt, what is refused, and what spends no attempt."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fsd_calib import calibrate
from fsd_calib.calibration.api import Calibration
from fsd_calib.calibration.plan import Plan, check_enough, claim_of
from fsd_calib.calibration.session import Session, open_session
from fsd_calib.certification.attempt_ledger import AttemptLedger
from fsd_calib.certification.claim import Claim
from fsd_calib.certification.looks import Looks
from fsd_calib.certification.outcomes import Paired
from fsd_calib.engines.own import OwnEngine
from fsd_calib.options.goal import Goal
from fsd_calib.options.run_config import RunConfig
from fsd_calib.options.search_space import SearchSpace
from fsd_common.errors import UsageError
from fsd_common.progress.base import Progress, Silent
from fsd_common.progress.chosen import Lines
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.models.fingerprint import family_id
from fsd_decoding.profile.setting import Setting
from fsd_decoding.sampling import Sampling
from support.models import tiny_calibration
from support.models.tiny_models import word_tokenizer
from support.models.tiny_pair import related

TASK = tiny_calibration.task(400)


def planned(cache: Path, spread: float = 0.05, progress: Progress | None = None, **goal: Any) -> Plan:
    """With the ledger in the folder of the cache."""
    target, draft = related(seed=1, spread=spread)
    config = RunConfig(cache=cache, state=cache, progress=progress or Silent())
    decoding = SearchSpace(score="js", draft_length=(2, 4))
    return Calibration(
        TASK, target, draft, Goal(**({"min_acc": 0.7} | goal)), decoding, config, word_tokenizer()
    ).plan()


@contextmanager
def session(
    state: Path, spread: float = 0.05, temperature: float = 0.0, seeds: int = 1, name: str = "tiny"
) -> Iterator[Session]:
    decoder = SpeculativeDecoder(
        *related(seed=1, spread=spread), word_tokenizer(), seed=0, sampling=Sampling(temperature, None, None)
    )
    with open_session(
        OwnEngine(decoder, replace(TASK, name=name)),
        replace(TASK, name=name),
        RunConfig(seeds=seeds, cache=state, state=state),
    ) as made:
        yield made


def attempt(state: Path, **changes: Any) -> int:
    frozen, claim = [Setting("fsd-coupled", "js", 2, 0.1)], Claim(0.7, looks=Looks((100,)))
    with session(state, **changes) as made:
        return made.holdout.open(frozen, made.setting("target"), claim, 0.95).attempt.number


def marked(state: Path) -> int:
    """How many of the tuning problems may not certify anything."""
    with session(state) as made, AttemptLedger(state / "ledger.sqlite") as ledger:
        family = family_id(made.decoder.target)
        return int((~ledger.usable(family, made.tuning.problems, "none")).sum())


def mark(state: Path, share: float) -> int:
    """Marks a share of the certification problems as tuned on, and returns how many."""
    with session(state) as made:
        ids = {problem.id for problem in made.holdout.part}
        first = [p for p in TASK.problems if p.id in ids][: round(share * len(ids))]
        made.tuned.mark(first)
        return len(first)


def test_repeated_problems_count_once_and_are_noted() -> None:
    task, log = tiny_calibration.task(60), StringIO()
    again = replace(task.problems[0], id=1, question=f"{task.problems[0].question} ")
    doubled = replace(task, problems=(*task.problems, again))
    decoder = SpeculativeDecoder(*related(seed=1, spread=0.05), word_tokenizer(), seed=0)
    with open_session(OwnEngine(decoder, doubled), doubled, RunConfig(progress=Lines(log))) as session:
        kept = [*(problem.id for problem in session.tuning.problems), *(problem.id for problem in session.holdout.part)]
    distinct = {problem.question for problem in task.problems}
    assert len(kept) == len(distinct)
    assert 1 in kept  # the smallest of its ids
    assert f"{61 - len(distinct)} of 61 problems repeat others" in log.getvalue()


@pytest.mark.slow
def test_tokens_are_drawn_by_min_p_in_texts_and_traces(tmp_path: Path) -> None:
    drawn: dict[str, Any] = {"temperature": 0.8, "min_p": 0.25}
    made = tiny_calibration.run_surely(tmp_path / "out", tmp_path / "cache", explore=True, **drawn)
    assert made.sampling.min_p == 0.25
    manifests = [json.loads(path.read_text()) for path in tmp_path.rglob("manifest.json")]
    assert {each["sampling"]["min_p"] for each in manifests} == {0.25}


@pytest.mark.slow
def test_two_drafts_share_a_cache(tmp_path: Path) -> None:
    planned(tmp_path, spread=0.05)
    planned(tmp_path, spread=0.2)


@pytest.mark.slow
def test_the_same_goal_again_is_the_same_attempt(tmp_path: Path) -> None:
    for min_acc in (0.5, 0.4, 0.5):
        profile = tiny_calibration.run_surely(tmp_path / "out", tmp_path / "cache", min_acc=min_acc)
    assert profile.certificate.attempt == 1  # "the same command again is the same attempt"


@pytest.mark.parametrize("other", [{"seeds": 2, "temperature": 0.8}, {"temperature": 0.6}])
def test_other_seeds_or_sampling_are_another_attempt(tmp_path: Path, other: dict[str, Any]) -> None:
    assert attempt(tmp_path, temperature=0.8) == 1
    assert attempt(tmp_path, **other) == 2


def test_drafts_in_turn_are_attempts_in_turn_and_a_name_is_none(tmp_path: Path) -> None:
    """Choosing among drafts is a choice: each that is tried could pass by chance."""
    assert [attempt(tmp_path, spread=spread) for spread in (0.05, 0.1, 0.2, 0.05)] == [1, 2, 3, 1]
    assert attempt(tmp_path, name="renamed") == 1


@pytest.mark.slow
def test_a_plan_marks_what_it_decodes_under_a_threshold_and_no_more(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="takes at least"):
        planned(tmp_path, min_acc=0.98, confidence=0.999)
    assert marked(tmp_path) == 0
    assert planned(tmp_path).pilot.problems == 64
    assert marked(tmp_path) == 64
    with session(tmp_path) as made:
        assert len(made.tuning.problems) > 64


@pytest.mark.slow
def test_problems_that_were_tuned_on_are_left_out_and_noted(tmp_path: Path) -> None:
    log, out = StringIO(), mark(tmp_path, 0.2)
    plan = planned(tmp_path, progress=Lines(log))
    whole = plan.certification + out
    assert f"{out} of {whole} certification problems were tuned on before and are left out" in log.getvalue()


def test_too_few_that_were_never_tuned_on_are_refused_with_the_reason(tmp_path: Path) -> None:
    out = mark(tmp_path, 0.9)
    with pytest.raises(
        UsageError, match=rf"to certify on \({out} of \d+ were tuned on before: .*\); to show retention"
    ):
        planned(tmp_path, min_acc=0.95)
    assert marked(tmp_path) == 0  # of the tuning part
    out += mark(tmp_path, 1.0) - out
    with pytest.raises(
        UsageError, match=rf"{out} of {out} certification problems were tuned or trained on before, which leaves"
    ):
        planned(tmp_path, min_acc=None, min_speed=1.0)


def test_a_ledger_of_another_version_is_no_empty_one(tmp_path: Path) -> None:
    assert mark(tmp_path, 0.2)
    sqlite3.connect(tmp_path / "ledger.sqlite").execute("PRAGMA user_version = 3")
    with pytest.raises(UsageError, match=r"ledger\.sqlite' is of another version .* use the fsd-calib that wrote it"):
        planned(tmp_path)


@pytest.mark.parametrize(("seeds", "problems"), [(1, 175), (4, 200)])
def test_enough_problems_are_enough_for_the_test_that_is_used(seeds: int, problems: int) -> None:
    """The message says "even if nothing is lost", and nothing is lost here."""
    goal, same = Goal(min_acc=0.98), Paired(*[np.ones((problems, seeds), bool)] * 2)
    claim = claim_of(goal, Looks.evenly(problems, goal.looks))
    assert claim.p_value(same) > claim.level(problems, 0.0304)
    with pytest.raises(UsageError, match="takes at least"):
        check_enough(goal, problems, 0.0304, seeds=seeds)


@pytest.mark.slow
def test_damaged_traces_are_set_aside(tmp_path: Path) -> None:
    planned(tmp_path)
    (shard,) = tmp_path.glob("traces/*/completions/*.parquet")
    shard.write_bytes(shard.read_bytes()[:100])
    with pytest.warns(UserWarning, match="damaged"):
        planned(tmp_path)


@pytest.mark.slow
def test_without_a_guarantee_any_number_of_problems_is_enough(tmp_path: Path) -> None:
    planned(tmp_path, min_acc=0.98, confidence=0.999, explore=True)


@pytest.mark.slow
def test_a_draft_that_never_errs_leaves_nothing_to_be_lossy_for(tmp_path: Path) -> None:
    target, draft = related(seed=1, spread=0.0)
    profile = calibrate(
        tiny_calibration.task(240), target=target, draft=draft, tokenizer=word_tokenizer(), cache=tmp_path,
        state=tmp_path, min_acc=0.7, draft_length=(2, 4), score="js", min_gain=1,
    )  # fmt: skip
    assert profile.outcome == "lossless", (profile.threshold, profile.speed.chosen, profile.speed.lossless)


@pytest.mark.slow
def test_too_few_to_time_is_said_before_an_attempt_is_spent(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="to time"):
        tiny_calibration.run_surely(tmp_path / "out", tmp_path / "cache", serve_batch=64)
    assert tiny_calibration.run_surely(tmp_path / "out", tmp_path / "cache").certificate.attempt == 1
