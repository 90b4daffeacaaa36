"""Whose an output folder is, and that no run writes over the profile of another."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fsd_calib.calibration.api import Calibration
from fsd_calib.calibration.output_folder import (
    MARK,
    NOT_CERTIFIED,
    check_own,
    claim,
    identity_of,
    made,
    own_folder,
    save,
)
from fsd_calib.calibration.run_file import save_run
from fsd_calib.options.goal import Goal
from fsd_calib.options.run_config import RunConfig
from fsd_calib.options.search_space import SearchSpace
from fsd_common.errors import UsageError
from fsd_decoding.drafters.ngram import NGram
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from support.calibration.fixed_speeds import fix_speeds
from support.calibration.profiles import FRONT, LOSSLESS, UNCERTIFIED, VALUES, profile
from support.messages import usage_error
from support.models import tiny_calibration
from support.models.tiny_calibration import far_apart
from support.models.tiny_models import word_tokenizer

ASKED = Calibration("gsm8k", "Qwen/Qwen2.5-1.5B", "Qwen/Qwen2.5-0.5B", Goal(min_acc=0.9))
OTHER_GOAL = replace(ASKED, goal=Goal(min_acc=0.95))


def changed(**fields: Any) -> Calibration:
    return replace(ASKED, config=ASKED.config.changed(**fields))


def test_the_first_run_has_the_tasks_folder_and_others_have_folders_of_their_own(tmp_path: Path) -> None:
    base = tmp_path / "gsm8k"
    own = partial(own_folder, base, engines=("fsd-calib",))
    assert own(ASKED) == base
    base.mkdir()
    claim(base, ASKED)
    assert own(ASKED) == base  # it goes on, with a profile or without
    longer = own(OTHER_GOAL)
    assert longer.name == "gsm8k-Qwen2.5-1.5B-with-0.5B-min-acc-0.95"
    longer.mkdir()
    save(profile(), longer, OTHER_GOAL)
    assert own(OTHER_GOAL) == longer
    limited = replace(OTHER_GOAL, config=RunConfig(limit=100))
    assert own(limited).name == f"{longer.name}-{identity_of(limited)[:6]}-100"
    assert own(limited) == own(limited)


def test_a_profile_of_unknown_origin_keeps_its_folder(tmp_path: Path) -> None:
    profile().save(tmp_path / "gsm8k" / "profile.json")
    assert own_folder(tmp_path / "gsm8k", ASKED, ("fsd-calib",)).name == "gsm8k-Qwen2.5-1.5B-with-0.5B-min-acc-0.9"


@pytest.mark.parametrize(
    "other",
    [
        OTHER_GOAL,
        replace(ASKED, goal=Goal(min_acc=0.9, explore=True)),
        replace(ASKED, task="csqa"),
        replace(ASKED, draft=["Qwen/Qwen2.5-0.5B", NGram()]),
        replace(ASKED, decoding=SearchSpace(score="tv")),
        replace(ASKED, decoding=SearchSpace(seed=1)),
        changed(data="mine.jsonl"),
        changed(system="Answer briefly."),
        changed(dtype="bfloat16"),
    ],
    ids=str,
)
def test_what_changes_the_result_is_another_run(other: Calibration) -> None:
    assert identity_of(other) != identity_of(ASKED)


def test_how_a_run_is_scheduled_timed_and_stored_is_no_other_run() -> None:
    same = changed(batch_size=4, workers=2, timing="careful", cache="c", state="s", out="o", storage="x.log")
    assert identity_of(same) == identity_of(ASKED)
    listed = replace(ASKED, draft=["Qwen/Qwen2.5-0.5B"], decoding=SearchSpace(rule=("fsd-coupled",)))
    assert identity_of(listed) == identity_of(ASKED)


def test_with_more_problems_a_run_goes_on_in_its_folder_and_with_fewer_it_is_another(tmp_path: Path) -> None:
    first, more, fewer = (changed(limit=limit) for limit in (500, 1000, 499))
    save(profile(), tmp_path, first)
    for asked in (first, more, ASKED):
        check_own(tmp_path, asked)
    assert "of the same command with more problems" in usage_error(lambda: check_own(tmp_path, fewer))
    assert save(profile(), tmp_path, more)
    assert "of the same command with more problems" in usage_error(lambda: check_own(tmp_path, first))


def test_a_profile_of_another_run_is_refused_by_what_it_is_of(tmp_path: Path) -> None:
    save(profile(), tmp_path, ASKED)
    check_own(tmp_path, ASKED)
    message = usage_error(lambda: check_own(tmp_path, OTHER_GOAL))
    assert message.startswith(f"out {str(tmp_path)!r} holds a profile of another run (task arithmetic, ")
    assert message.endswith("retention 0.98, certified-faster); give another out, or replace to write over it")
    check_own(tmp_path, replace(OTHER_GOAL, config=RunConfig(replace=True)))


def test_a_certified_profile_is_replaced_by_certified_ones_alone(tmp_path: Path) -> None:
    certified, later, failed = profile(), profile({"seed": 5}), profile(UNCERTIFIED)
    replacing = replace(OTHER_GOAL, config=RunConfig(replace=True))
    assert save(failed, tmp_path, ASKED)
    assert save(certified, tmp_path, ASKED)
    for asked in (ASKED, replacing):
        assert not save(failed, tmp_path, asked)
        assert failed.file == tmp_path / NOT_CERTIFIED
        assert ThresholdProfile.load(tmp_path) == certified
        check_own(tmp_path, ASKED)
    assert save(later, tmp_path, replacing)
    assert later.file == tmp_path / "profile.json"
    assert usage_error(lambda: check_own(tmp_path, ASKED))


@pytest.mark.parametrize("certifying", [FRONT, {**LOSSLESS, "certificate.lossless": True}], ids=["front", "lossless"])
def test_what_certifies_without_a_chosen_setting_is_replaced_by_certified_ones_alone(
    certifying: dict[str, Any], tmp_path: Path
) -> None:
    kept, replacing = profile(certifying), replace(OTHER_GOAL, config=RunConfig(replace=True))
    assert save(kept, tmp_path, ASKED)
    for failed in (profile(UNCERTIFIED), profile({**FRONT, "curve": VALUES["curve"][:4]})):
        assert not save(failed, tmp_path, replacing)
        assert ThresholdProfile.load(tmp_path) == kept
    assert save(profile(FRONT), tmp_path, replacing)


def test_what_was_asked_for_is_saved_where_its_profile_is(tmp_path: Path) -> None:
    """Of several engines, too, each of which has a folder of its own."""
    asked = changed(out=tmp_path)
    kept, failed = profile(), profile(UNCERTIFIED)
    assert save(kept, tmp_path / "vllm", asked)
    save_run(asked, kept, engines=("vllm", "fsd-calib"))
    before = (tmp_path / "run.yaml").read_bytes()
    other = replace(asked, goal=Goal(min_acc=0.95))
    assert not save(failed, tmp_path / "vllm", other)
    save_run(other, failed, engines=("vllm", "fsd-calib"))
    assert (tmp_path / "run.yaml").read_bytes() == before


def test_of_two_runs_in_one_folder_the_second_to_end_writes_beside_the_first(tmp_path: Path) -> None:
    claim(tmp_path, ASKED)
    claim(tmp_path, OTHER_GOAL)
    first, second = profile(), profile({"seed": 5})
    assert save(first, tmp_path, ASKED)
    assert not save(second, tmp_path, OTHER_GOAL)
    assert ThresholdProfile.load(tmp_path) == first
    assert second.file is not None
    assert second.file.name == f"profile-{identity_of(OTHER_GOAL)[:6]}.json"
    assert ThresholdProfile.load(second.file) == second


def test_a_folder_that_was_made_for_nothing_is_removed(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(UsageError), made(tmp_path / "there" / "a" / "b"):
        raise UsageError("bad")
    assert not (tmp_path / "there" / "a").exists()
    with made(tmp_path / "there"):
        pass
    assert (tmp_path / "there").exists()
    with made(tmp_path / "there" / "a"):
        (tmp_path / "there" / "a" / "file").touch()
    assert (tmp_path / "there" / "a" / "file").exists()


@pytest.mark.slow
def test_a_plan_leaves_no_folder(tmp_path: Path) -> None:
    target, draft = far_apart()
    settings = RunConfig(out=tmp_path / "out", cache=tmp_path / "cache", state=tmp_path / "state")
    asked = Calibration(
        tiny_calibration.task(240), target, draft, Goal(min_acc=0.5), SearchSpace(score="js", draft_length=4),
        settings, word_tokenizer(),
    )  # fmt: skip
    asked.plan()
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_calibrations_in_python_obey(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fix_speeds(monkeypatch, 1.5)
    out, cache = tmp_path / "out", tmp_path / "cache"
    with pytest.raises(UsageError, match="problems to certify on"):
        tiny_calibration.run(out, cache, problems=20, min_acc=0.98, replace=False)
    assert not out.exists()
    first = tiny_calibration.run_surely(out, cache, replace=False)
    assert first.certificate.certified
    assert (out / MARK).exists()
    page = (out / "report.html").read_bytes()
    with pytest.raises(UsageError, match=r"holds a profile of another run \(task tiny, .*give another out"):
        tiny_calibration.run_surely(out, cache, explore=True, replace=False)
    explored = tiny_calibration.run_surely(out, cache, explore=True, replace=True)
    assert explored.outcome == "untested"
    assert ThresholdProfile.load(out) == first
    assert ThresholdProfile.load(out / NOT_CERTIFIED) == explored
    assert (out / "report.html").read_bytes() == page
    again = tiny_calibration.run_surely(out, cache, replace=False)
    assert again.certificate == first.certificate
