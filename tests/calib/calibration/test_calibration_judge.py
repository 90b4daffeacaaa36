"""A judge in a calibration: labelled, trained, searched and certified in one call, on problems apart."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from fsd_calib import SpeculativeDecoder, ThresholdProfile, calibrate
from fsd_calib.calibration import judge as judging
from fsd_calib.calibration.api import Calibration
from fsd_calib.calibration.judge import CARD, FILE, KEPT, LABELS
from fsd_calib.calibration.recertify import decoding_of
from fsd_calib.options.goal import Goal
from fsd_calib.options.run_config import RunConfig
from fsd_calib.options.search_space import SearchSpace
from fsd_calib.tasks.grading.graders import same_text
from fsd_calib.tasks.split import parts_of
from fsd_collectors.judging.labels import read_labels
from fsd_collectors.store.reading import load_traces
from fsd_common.errors import UsageError
from fsd_common.packed_ids import pack_ids
from fsd_common.progress.chosen import Lines
from fsd_decoding.judging.features import PAST
from fsd_decoding.judging.known import register
from fsd_decoding.judging.model import JudgeModel
from fsd_decoding.tree_shape import TreeShape
from fsd_predictors.judging import training
from support.models.judges import judge, judge_of
from support.models.tiny_calibration import far_apart, run, task
from support.models.tiny_models import word_tokenizer
from support.models.tiny_pair import ragged_prompts, related
from support.models.tiny_task import tiny_task
from support.traces.labelling import labelled

ASKED: dict[str, Any] = {"score": "judge", "judge": "auto", "judge_budget": 150, "draft_length": 4, "trials": 3,
                         "timing": "none", "batch_size": 16, "workers": 1}  # fmt: skip
PAIR = far_apart()


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ThresholdProfile]:
    folder = tmp_path_factory.mktemp("judged")
    return folder, run(folder / "out", folder / "cache", problems=900, pair=PAIR, **ASKED)


@pytest.mark.slow
def test_one_call_labels_trains_searches_and_certifies(calibrated: tuple[Path, ThresholdProfile]) -> None:
    folder, profile = calibrated
    assert profile.judge == JudgeModel.load(folder / "out" / FILE)
    assert profile.score == profile.judge.name
    assert "Ranking of harmful mismatches" in (folder / "out" / CARD).read_text()
    assert profile.certificate.problems > 0


@pytest.mark.slow
def test_problems_of_labels_neither_search_nor_certify(calibrated: tuple[Path, ThresholdProfile]) -> None:
    folder, profile = calibrated
    (kept,) = (folder / "cache" / KEPT).iterdir()
    labels = read_labels(kept / LABELS)
    read = load_traces(kept / LABELS).to_pandas(["problem", "correct"], table="completions")
    assert profile.judge is not None
    assert not read["correct"].all()  # of some there are no labels, and they are left out of the search all the same
    assert profile.judge.trained_ids == set(read["problem"]) > set(labels["problem"])
    assert set(labels["split"]) == {"tuning"}
    assert profile.data.tuning + len(profile.judge.trained_ids) + profile.data.certification <= 900
    searched = [point.problems for point in profile.curve if point.source == "tuning"]
    assert max(searched) <= profile.data.tuning


@pytest.mark.slow
def test_certifying_its_setting_anew_needs_no_problems_for_a_search(
    calibrated: tuple[Path, ThresholdProfile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judging, "LEAST", 10_000)
    _, profile = calibrated
    config = RunConfig(cache=tmp_path, state=tmp_path, timing="none", batch_size=16, workers=1, min_gain=1.0)
    again = Calibration(
        task(900), *PAIR, Goal(min_acc=0.7), decoding_of(profile), config, word_tokenizer(), fixed=profile
    ).run()
    assert again.judge == profile.judge
    assert again.certificate.problems > 0


@pytest.mark.slow
def test_decoders_of_the_profile_have_its_judge(calibrated: tuple[Path, ThresholdProfile]) -> None:
    _, profile = calibrated
    with pytest.warns(UserWarning, match="instead of"):
        decoder = SpeculativeDecoder.from_pretrained(
            *PAIR, profile, tokenizer=word_tokenizer(), score=profile.score, threshold=0.4
        )
    assert decoder.score == profile.score
    assert len(decoder.generate(ragged_prompts(2), 8)) == 2


@pytest.mark.slow
def test_a_file_is_used_again_and_its_problems_do_not_certify(
    calibrated: tuple[Path, ThresholdProfile], tmp_path: Path
) -> None:
    _, profile = calibrated
    assert profile.judge is not None
    certifying = {problem.id for problem in parts_of(task(900)).certification[:20]}
    trained = pack_ids({*profile.judge.trained_ids, *certifying})  # as on a part that was cut elsewhere
    own = JudgeModel.model_validate(profile.judge.model_dump() | {"trained": trained})
    own.save(tmp_path / FILE)
    asked = {**ASKED, "judge": tmp_path / FILE}
    again = run(tmp_path / "out", tmp_path / "cache", problems=900, pair=PAIR, **asked)
    assert again.judge == own
    assert again.data.certification == profile.data.certification - len(certifying)
    assert not (tmp_path / "cache" / KEPT).exists()


@pytest.mark.slow
@pytest.mark.parametrize(("agreement", "certified"), [(False, True), (True, False)], ids=["even words", "agreement"])
def test_on_another_task_its_certificate_decides(tmp_path: Path, agreement: bool, certified: bool) -> None:
    """The judge says that nothing is harmful. Half of all texts are right here, or the target's own ones alone."""
    own = judge_of(PAIR, offset=-9.0, task="another")
    own.save(tmp_path / FILE)
    tiny = task(400)
    if agreement:
        tiny = replace(tiny, name="agreement", by_agreement=True, keys_are_texts=False, grader=same_text)
    asked: dict[str, Any] = {**ASKED, "judge": tmp_path / FILE, "min_acc": 0.7, "min_gain": 1.0}
    found = calibrate(
        tiny, target=PAIR[0], draft=PAIR[1], tokenizer=word_tokenizer(), out=tmp_path / "out", cache=tmp_path,
        state=tmp_path, **asked,
    )  # fmt: skip
    assert found.judge == own
    assert found.certificate.certified == certified
    assert (found.threshold is not None) == certified


@pytest.mark.slow
def test_its_card_tells_of_labels_of_other_tasks(calibrated: tuple[Path, ThresholdProfile], tmp_path: Path) -> None:
    """The judge is that of the earlier run, and its labels stand for those of another task."""
    folder, profile = calibrated
    (kept,) = (folder / "cache" / KEPT).iterdir()
    asked = {**ASKED, "judge_others": [kept / LABELS]}
    again = run(tmp_path / "out", folder / "cache", problems=900, pair=PAIR, state=tmp_path, **asked)
    assert again.judge == profile.judge
    card, before = ((place / "out" / CARD).read_text() for place in (tmp_path, folder))
    assert card.startswith(before)
    assert "Other tasks" in card.removeprefix(before)


@pytest.mark.slow
def test_a_judge_that_may_read_the_text_is_searched_and_certified(
    calibrated: tuple[Path, ThresholdProfile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the labels of the other one."""
    monkeypatch.setattr(judging, "FEATURES", (*PAST, "place"))
    monkeypatch.setattr(training, "_GROUPS", {"all": 1.0})
    folder, other = calibrated
    asked = {**ASKED, "judge_context": True}
    profile = run(tmp_path / "out", folder / "cache", problems=900, pair=PAIR, state=tmp_path, **asked)
    assert profile.judge is not None
    assert profile.judge == JudgeModel.load(tmp_path / "out" / FILE) != other.judge
    assert not {"since", "lately"}.isdisjoint(profile.judge.features)
    assert profile.certificate.problems > 0
    assert len(list((folder / "cache" / KEPT).iterdir())) == 1


def test_labels_of_other_models_are_refused_before_anything_is_labelled(tmp_path: Path) -> None:
    labelled(tmp_path / "labels", related(seed=3, spread=0.05), tiny_task(60), budget=40)
    asked = {**ASKED, "judge_others": tmp_path / "labels"}
    with pytest.raises(UsageError, match="labels' are of other models or sampling than this calibration"):
        run(tmp_path / "out", tmp_path / "cache", problems=900, pair=PAIR, **asked)
    assert not (tmp_path / "cache" / KEPT).exists()


def test_a_judge_of_other_models_is_refused(tmp_path: Path) -> None:
    judge().save(tmp_path / FILE)
    with pytest.raises(UsageError, match="was trained for a target with fingerprint t, and this target has"):
        run(tmp_path / "out", tmp_path / "cache", pair=PAIR, **{**ASKED, "judge": tmp_path / FILE})


def test_the_name_of_a_judge_takes_the_path_of_its_file(tmp_path: Path) -> None:
    name = register(judge())
    with pytest.raises(UsageError, match="was trained for a target with fingerprint t, and this target has"):
        run(tmp_path / "out", tmp_path / "cache", pair=PAIR, score=name)


@pytest.mark.slow
def test_more_problems_make_another_judge_in_the_same_folder(
    calibrated: tuple[Path, ThresholdProfile], tmp_path: Path
) -> None:
    folder, profile = calibrated
    again = run(folder / "out", folder / "cache", problems=960, pair=PAIR, state=tmp_path, **ASKED)
    assert again.judge is not None
    assert again.judge != profile.judge
    assert again.judge == JudgeModel.load(folder / "out" / FILE)


@pytest.mark.slow
def test_the_name_of_a_judge_leaves_its_problems_out(
    calibrated: tuple[Path, ThresholdProfile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judging, "LEAST", 10_000)
    _, profile = calibrated
    assert profile.judge is not None
    with pytest.raises(UsageError, match=f"trained on {len(profile.judge.trained_ids)} of"):
        run(tmp_path / "out", tmp_path / "cache", problems=900, pair=PAIR, score=profile.judge.name)


def test_too_few_problems_are_told_before_anything_is_labelled(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="for the search, and that needs 64: give more problems"):
        run(tmp_path / "out", tmp_path / "cache", problems=240, pair=PAIR, **ASKED)
    assert not (tmp_path / "cache" / KEPT).exists()


def test_vllm_takes_a_judge_that_was_trained_elsewhere(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="calibrate with engine fsd-calib first, and give the judge"):
        run(tmp_path / "out", tmp_path / "cache", pair=PAIR, engine="vllm", **ASKED)


@pytest.mark.slow
def test_a_plan_says_what_it_forecasts_in_the_place_of_a_judge(tmp_path: Path) -> None:
    log = StringIO()
    Calibration(
        task(900), *PAIR, Goal(min_acc=0.7), SearchSpace(score="judge", judge="auto", draft_length=4),
        RunConfig(cache=tmp_path, state=tmp_path, progress=Lines(log), workers=1), word_tokenizer(),
    ).plan()  # fmt: skip
    assert "the plan lacks the time of that, and forecasts js and doubt in its place" in " ".join(
        log.getvalue().split()
    )
    assert not (tmp_path / KEPT).exists()


@pytest.mark.slow
def test_a_search_needs_problems_of_its_own(
    calibrated: tuple[Path, ThresholdProfile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judging, "LEAST", 10_000)
    folder, _ = calibrated
    with pytest.raises(UsageError, match="a search needs 10000 others"):
        run(tmp_path / "out", tmp_path / "cache", problems=900, pair=PAIR, **{**ASKED, "judge": folder / "out" / FILE})


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"score": "judge"}, "score judge is given without judge FILE, or judge auto to train one"),
        ({"judge": "auto"}, "judge is given without score judge"),
        ({"score": "judge", "judge": "auto", "predictor": "auto"}, "score judge and predictor are given"),
        ({"score": "judge", "judge": "auto", "tree": TreeShape(2, 6)}, "score judge and tree are given"),
        ({"score": "judge", "judge": "x.json", "judge_others": "labels"}, "judge_others is given, and is for"),
        ({"judge_context": True}, "judge_context is given, and is for a judge that is trained"),
        ({"score": "judge", "judge": "auto", "judge_budget": 0}, "judge_budget is 0"),
        ({"score": ("judge", "judge@01"), "judge": "auto"}, "score has judge and judge@01; give one judge"),
    ],
)
def test_what_does_not_go_together_is_refused(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        SearchSpace(**asked)
