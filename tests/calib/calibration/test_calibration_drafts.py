"""Several drafts in one calibration: one search, one frozen sequence, one attempt, and a profile of the chosen one."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from fsd_calib import SpeculativeDecoder, ThresholdProfile, calibrate
from fsd_calib.report.verdict import verdict
from fsd_decoding.models.fingerprint import model_fingerprint
from support.calibration.fixed_speeds import fix_costs, fix_speeds
from support.messages import usage_error
from support.models import tiny_calibration
from support.models.tiny_models import word_tokenizer
from support.models.tiny_pair import related

SPREADS = {"near": 0.001, "far": 0.2, "farther": 0.3}
SETTINGS: dict[str, Any] = {
    "min_acc": 0.95,
    "draft_length": (2, 4),
    "score": "js",
    "explore": True,
    "trials": 12,
}


def models() -> tuple[Any, dict[str, Any]]:
    """A target, and drafts of it by their names: one hardly ever errs, the others mostly do, and all are as fast."""
    target, drafts = None, {}
    for name, spread in SPREADS.items():
        target, draft = related(seed=1, spread=spread)
        draft.config._name_or_path = f"drafts/{name}"
        drafts[name] = draft
    return target, drafts


def run(folder: Path, *names: str, **changes: Any) -> ThresholdProfile:
    target, drafts = models()
    return calibrate(
        tiny_calibration.task(240), target=target, draft=[drafts[name] for name in names], tokenizer=word_tokenizer(),
        out=folder / "out", replace=True, cache=folder / "cache", **(SETTINGS | changes),
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("drafts")


@pytest.fixture(scope="module")
def made(folder: Path) -> ThresholdProfile:
    with pytest.MonkeyPatch.context() as monkeypatch:
        fix_costs(monkeypatch)  # or the clock would say which of the two is faster
        return run(folder, "far", "near")


@pytest.fixture(scope="module")
def front(folder: Path) -> ThresholdProfile:
    return run(folder / "front", "far", "near", pareto=True, min_acc=None)


@pytest.mark.slow
def test_the_profile_is_of_the_chosen_one_and_names_the_other(made: ThresholdProfile, folder: Path) -> None:
    _, drafts = models()
    ids = {made.draft.id, *(other.id for other in made.other_drafts)}
    assert ids == {"drafts/near", "drafts/far"}
    assert made.draft.fingerprint == model_fingerprint(drafts[Path(made.draft.id).name])
    assert ThresholdProfile.load(folder / "out" / "profile.json") == made


@pytest.mark.slow
def test_a_front_has_points_of_both(front: ThresholdProfile) -> None:
    (other,) = front.other_drafts
    assert {point.setting.draft for point in front.curve if point.setting.threshold is not None} == {None, other.id}


@pytest.mark.slow
def test_the_nearer_of_two_equally_fast_drafts_is_chosen(made: ThresholdProfile) -> None:
    """Though it is given last: what the other one substitutes costs accuracy."""
    assert made.draft.id == "drafts/near"


@pytest.mark.slow
def test_points_of_another_draft_say_so(front: ThresholdProfile) -> None:
    (other,) = front.other_drafts
    points = [p for p in front.curve if p.setting.draft == other.id and p.setting.threshold is not None]
    choice = front.model_copy(update={"curve": points}).at(min_acc=0.01, certified=False)
    assert choice.draft == other.id


@pytest.mark.slow
def test_a_decoder_follows_it_with_the_chosen_draft_alone(made: ThresholdProfile) -> None:
    target, drafts = models()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it was never tested
        SpeculativeDecoder.from_pretrained(target, drafts["near"], profile=made, tokenizer=word_tokenizer())
    assert "the profile's draft is 'drafts/near'" in usage_error(
        lambda: SpeculativeDecoder.from_pretrained(target, drafts["far"], profile=made, tokenizer=word_tokenizer())
    )


@pytest.mark.slow
def test_several_drafts_are_one_attempt(tmp_path: Path) -> None:
    """Where neither draft keeps to the target, what is lossy is faster, and is tested."""
    for _ in range(2):
        made = run(tmp_path, "far", "farther", min_acc=0.5, explore=False)
        assert made.certificate.problems > 0
        assert made.certificate.attempt == 1
    alone = run(tmp_path, "farther", min_acc=0.5, explore=False)
    assert alone.certificate.attempt == 2  # to try another draft afterwards is to choose


def test_what_is_learned_with_one_draft_is_refused_with_two(tmp_path: Path) -> None:
    assert "policy per-prompt is learned with one draft, and 2 are given" in usage_error(
        lambda: run(tmp_path, "near", "far", threshold_policy="per-prompt")
    )
    assert "a predictor is learned with one draft, and 2 are given" in usage_error(
        lambda: run(tmp_path, "near", "far", predictor="auto")
    )


def test_drafts_are_told_apart_by_name(tmp_path: Path) -> None:
    assert "drafts are 'drafts/near', 'drafts/near', and 'drafts/near' is there twice; give it once" in usage_error(
        lambda: run(tmp_path, "near", "near")
    )
    target, drafts = models()
    for draft in drafts.values():
        draft.config._name_or_path = ""
    assert "several drafts are told apart by their names" in usage_error(
        lambda: calibrate(
            tiny_calibration.task(240),
            target=target,
            draft=list(drafts.values()),
            tokenizer=word_tokenizer(),
            **SETTINGS,
        )
    )
    assert "draft is an empty list" in usage_error(lambda: run(tmp_path))


@pytest.mark.slow
def test_what_was_tested_is_named_with_its_own_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where lossless decoding suffices, with the draft that is best for that."""
    fix_speeds(monkeypatch, 0.8)
    made = run(tmp_path, "near", "far", min_acc=0.4, explore=False, draft_length=4)
    assert made.outcome == "lossless"
    assert made.draft.id == "drafts/near"
    if made.estimate is not None:
        draft = made.estimate.draft or made.draft.id
        said = f"(js, L = 4, draft {Path(draft).name})"
        assert said in verdict(made)


@pytest.mark.slow
def test_their_order_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fix_speeds(monkeypatch, 1.5)
    first, second = (run(tmp_path, *names, min_acc=0.5) for names in (("far", "farther"), ("farther", "far")))
    assert second.effort is not None
    assert second.effort.total.decoded == 0
    assert (second.threshold, second.draft) == (first.threshold, first.draft)
