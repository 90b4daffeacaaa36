"""`calibrate` takes objects or their fields as keywords, and they are the same calibration."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from fsd_calib import Goal, RunConfig, SearchSpace, calibrate
from fsd_common.errors import UsageError
from fsd_data import pair_paths
from support.models import tiny_calibration
from support.models.tiny_models import word_tokenizer


def test_no_keyword_belongs_to_two_objects_and_help_lists_all() -> None:
    names = [name for config in (Goal, SearchSpace, RunConfig) for name in config.model_fields]
    assert len(names) == len(set(names))
    assert set(names) < set(inspect.signature(calibrate).parameters)


@pytest.mark.slow
def test_objects_and_keywords_are_the_same_attempt(tmp_path: Path) -> None:
    models = tiny_calibration.far_apart()
    task, tokenizer = tiny_calibration.task(160), word_tokenizer()
    flat = calibrate(
        task, *models, tokenizer=tokenizer, min_acc=0.5, serve_batch=8, draft_length=4, score="js", trials=4,
        timing="none", out=tmp_path / "out", cache=tmp_path, state=tmp_path,
    )  # fmt: skip
    objects = calibrate(
        task, *models, tokenizer=tokenizer, goal=Goal(min_acc=0.5, serve_batch=8),
        decoding=SearchSpace(score="js", draft_length=4),
        run=RunConfig(trials=4, timing="none", out=tmp_path / "out", cache=tmp_path, state=tmp_path),
    )  # fmt: skip
    assert flat.certificate is not None
    assert objects.certificate == flat.certificate
    assert (objects.threshold, objects.draft_length) == (flat.threshold, flat.draft_length)


def test_keywords_go_before_the_objects_fields() -> None:
    with pytest.raises(UsageError, match=r"^min_acc is 7.*"):
        calibrate(tiny_calibration.task(60), *tiny_calibration.far_apart(), goal=Goal(min_acc=0.5), min_acc=7)
    with pytest.raises(UsageError, match="trials is 0; it must be a whole number of at least 1"):
        calibrate(tiny_calibration.task(60), *tiny_calibration.far_apart(), min_acc=0.5, run=RunConfig(), trials=0)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"predictor": lambda state: state.going}, "predictor is .*function.*; it must be a path"),
        ({"rule": "sd"}, "rule is 'sd'; it must be one of fsd, fsd-sd, fsd-coupled"),
        ({"threshold_policy": "slow"}, "threshold_policy is 'slow'; it must be one of"),
        ({"temperature": -1}, "temperature is -1; it must be 0"),
        ({"top_k": 3}, "top_k is 3 at temperature 0, which is greedy"),
        ({"tree": "2,6"}, "tree is '2,6'; write a shape as TreeShape"),
        ({"goal": 0.98}, "goal is 0.98; it must be a Goal, or give its fields as keywords"),
        ({"decoding": {"rule": "fsd"}}, "decoding is .*; it must be a SearchSpace"),
        ({"run": {}}, "run is {}; it must be a RunConfig"),
        ({"min_acc": "0.9"}, "^min_acc is '0.9'; it must be a number"),
        ({"limit": 0}, "limit is 0; it must be a whole number of at least 1"),
        ({"min_speed": 3.0}, "give exactly one of min_acc, min_speed and pareto"),
    ],
)
def test_what_a_calibration_cannot_search_is_refused(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        calibrate(tiny_calibration.task(60), *tiny_calibration.far_apart(), **({"min_acc": 0.5} | keywords))


def test_none_is_the_default_where_it_once_was() -> None:
    assert RunConfig(progress=None) == RunConfig()


def test_a_task_that_is_refused_is_refused_before_models_load(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = list[Any]()
    monkeypatch.setattr("fsd_calib.calibration.engines.load_model", loaded.append)
    cases: list[tuple[Any, str]] = [
        ({"task": "arithmtic"}, "unknown task"),
        ({"task": "gsm8k", "data": "nope"}, "nope"),
    ]
    for keywords, message in cases:
        with pytest.raises(UsageError, match=message):
            calibrate(target=str(pair_paths()[0]), draft=str(pair_paths()[1]), min_acc=0.9, **keywords)
    assert loaded == []


def test_an_unknown_keyword_is_a_type_error_that_names_it() -> None:
    keywords: dict[str, Any]
    for unknown in ("confidense", "threshold", "repetition_penalty", "on"):
        keywords = {unknown: 0.9}
        with pytest.raises(TypeError, match=rf"calibrate\(\) got an unexpected keyword argument '{unknown}'"):
            calibrate(tiny_calibration.task(60), *tiny_calibration.far_apart(), min_acc=0.5, **keywords)
