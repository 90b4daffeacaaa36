"""`calibrate` takes objects or their fields as keywords, and they are the same calibration."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from fsd_calib import DecodingConfig, Goal, RunConfig, Sampling, calibrate
from fsd_calib.calibration.api import CalibrationKeywords
from fsd_calib.calibration.goal import GoalKeywords
from fsd_calib.calibration.run_config import RunKeywords
from fsd_common.errors import UsageError
from fsd_data import pair_paths
from support.models import tiny_calibration
from support.models.tiny_models import word_tokenizer


@pytest.mark.parametrize(("config", "keywords"), [(Goal, GoalKeywords), (RunConfig, RunKeywords)])
def test_keywords_are_the_fields_and_of_their_types(config: Any, keywords: Any) -> None:
    hints = get_type_hints(config)
    assert get_type_hints(keywords) == {f.name: hints[f.name] for f in fields(config)}


def test_no_keyword_belongs_to_two_objects() -> None:
    names = [f.name for config in (Goal, DecodingConfig, RunConfig, Sampling) for f in fields(config)]
    assert len(names) == len(set(names))
    assert set(names) - {"processors", "_warpers"} | {"predictor"} == set(get_type_hints(CalibrationKeywords))


@pytest.mark.slow
def test_objects_and_keywords_are_the_same_attempt(tmp_path: Path) -> None:
    models = tiny_calibration.far_apart()
    task, tokenizer = tiny_calibration.task(160), word_tokenizer()
    flat = calibrate(
        task, *models, tokenizer=tokenizer, min_acc=0.5, serve_batch=8, draft_length=4, divergence="js", trials=4,
        timing="none", out=tmp_path / "out", cache=tmp_path, state=tmp_path,
    )  # fmt: skip
    objects = calibrate(
        task, *models, tokenizer=tokenizer, goal=Goal(min_acc=0.5, serve_batch=8),
        decoding=DecodingConfig(divergence="js", draft_length=4),
        run=RunConfig(trials=4, timing="none", out=tmp_path / "out", cache=tmp_path, state=tmp_path),
    )  # fmt: skip
    assert flat.certificate is not None
    assert objects.certificate == flat.certificate
    assert (objects.threshold, objects.draft_length) == (flat.threshold, flat.draft_length)


def test_keywords_go_before_the_objects_fields() -> None:
    with pytest.raises(UsageError, match=r"--min-acc is 7.*"):
        calibrate(tiny_calibration.task(60), *tiny_calibration.far_apart(), goal=Goal(min_acc=0.5), min_acc=7)
    with pytest.raises(UsageError, match="trials is 0; it must be a whole number of at least 1"):
        calibrate(tiny_calibration.task(60), *tiny_calibration.far_apart(), min_acc=0.5, run=RunConfig(), trials=0)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"threshold": 0.1}, "threshold is 0.1; a calibration finds T itself"),
        ({"stop_policy": lambda state: state.going}, "stop_policy is a function; a calibration takes the folder"),
        ({"threshold_policy": "slow"}, "threshold_policy is 'slow'; it must be one of"),
        ({"sampling": Sampling(repetition_penalty=1.1)}, "a calibration takes temperature, top_k, top_p and min_p"),
        ({"repetition_penalty": 1.2}, "a calibration takes temperature, top_k, top_p and min_p"),
        ({"tree": "2,6"}, "tree is '2,6'; write a shape as TreeShape"),
        ({"on": "processed"}, "on='processed', within_support=False ask for more"),
        ({"predictor": "a", "stop_policy": "b"}, "predictor= and stop_policy= are both given"),
        ({"goal": 0.98}, "goal is 0.98; it must be a Goal, or give its fields as keywords"),
        ({"decoding": {"rule": "fsd"}}, "decoding is .*; it must be a DecodingConfig"),
        ({"run": {}}, "run is {}; it must be a RunConfig"),
        ({"min_acc": "0.9"}, "--min-acc is '0.9'; it must be a number"),
        ({"limit": 0}, "limit is 0; it must be a whole number of at least 1"),
        ({"min_speed": 3.0}, "give exactly one of --min-acc, --min-speed and --pareto"),
    ],
)
def test_what_a_calibration_cannot_search_is_refused(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        calibrate(tiny_calibration.task(60), *tiny_calibration.far_apart(), **({"min_acc": 0.5} | keywords))


def test_none_is_the_default_where_it_once_was() -> None:
    assert RunConfig(progress=None) == RunConfig()
    assert DecodingConfig().override({"sampling": None, "temperature": None}) == DecodingConfig()


def test_a_task_that_is_refused_is_refused_before_models_load(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = list[Any]()
    monkeypatch.setattr("fsd_decoding.decoder.load_model", loaded.append)
    cases: list[tuple[Any, str]] = [
        ({"task": "arithmtic"}, "unknown task"),
        ({"task": "gsm8k", "data": "nope"}, "nope"),
    ]
    for keywords, message in cases:
        with pytest.raises(UsageError, match=message):
            calibrate(target=str(pair_paths()[0]), draft=str(pair_paths()[1]), min_acc=0.9, **keywords)
    assert loaded == []


def test_an_unknown_keyword_is_a_type_error_that_names_it() -> None:
    unknown: dict[str, Any] = {"confidense": 0.9}
    with pytest.raises(TypeError, match=r"calibrate\(\) got an unexpected keyword argument 'confidense'"):
        calibrate(tiny_calibration.task(60), *tiny_calibration.far_apart(), min_acc=0.5, **unknown)
