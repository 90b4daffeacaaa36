"""Certifying the setting of a profile anew: nothing is searched, and it counts as an attempt."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fsd_calib.calibration.api import Calibration
from fsd_calib.calibration.in_turn import in_turn
from fsd_calib.calibration.plan import Plan
from fsd_calib.calibration.recertify import as_recorded, decoding_of, setting_of
from fsd_calib.engines.own import OwnEngine
from fsd_calib.options.goal import Goal
from fsd_calib.options.run_config import RunConfig
from fsd_collectors.replay.cost import CostModel
from fsd_common.errors import UsageError
from fsd_decoding.drafters.eagle import Eagle
from fsd_decoding.drafters.ngram import NGram
from fsd_decoding.profile.certificate import attempt_level
from fsd_decoding.profile.parts import EngineInfo
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from support.calibration.profiles import SLOWER, profile
from support.messages import usage_error
from support.models import tiny_calibration
from support.models.tiny_calibration import far_apart
from support.models.tiny_models import word_tokenizer

# Nearly all is accepted, so that it is faster than lossless decoding.
FOUND = {"threshold": 0.69, "draft_length": 4, "score": "js"}


@pytest.fixture(autouse=True)
def costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of no clock: whether the setting is faster than lossless decoding must not depend on what else runs."""
    monkeypatch.setattr(OwnEngine, "costs", lambda *_: CostModel(0.001, 0.003, 0.0))


def certification(folder: Path, found: ThresholdProfile, **run: Any) -> Calibration:
    settings: dict[str, Any] = {"out": folder / "out", "cache": folder, "state": folder, "timing": "none", **run}
    return Calibration(
        tiny_calibration.task(240), *far_apart(), Goal(min_acc=0.5, serve_batch=8), decoding_of(found),
        RunConfig(**settings), word_tokenizer(), fixed=found,
    )  # fmt: skip


@pytest.mark.slow
def test_the_setting_is_tested_and_nothing_else(tmp_path: Path) -> None:
    found = profile(FOUND)
    made = certification(tmp_path, found).run()
    assert made.certificate.certified
    assert (made.rule, made.score, made.draft_length, made.threshold) == ("fsd-coupled", "js", 4, 0.69)
    assert (made.certificate.frozen, made.certificate.attempt) == (1, 1)
    assert made.effort is not None
    assert made.effort.trials == 0
    assert {
        p.setting.threshold for p in made.curve if p.setting.rule == "fsd-coupled" and p.source == "certification"
    } == {0.69}


@pytest.mark.slow
def test_it_is_an_attempt_like_any_other_and_the_plan_says_at_which_level(tmp_path: Path) -> None:
    assert certification(tmp_path, profile(FOUND)).run().certificate.attempt == 1
    again = certification(tmp_path, profile(FOUND)).run()
    assert (again.certificate.attempt, again.effort and again.effort.certification.decoded) == (1, 0)
    other = certification(tmp_path / "other", profile({**FOUND, "threshold": 0.68}), cache=tmp_path, state=tmp_path)
    assert other.plan().delta == attempt_level(0.95, 2)
    assert other.run().certificate.attempt == 2


@pytest.mark.slow
def test_engines_in_turn_have_one_attempt_and_a_folder_each(tmp_path: Path) -> None:
    """Our own engine twice, since it is the one that is here; tests/vllm has both engines."""
    calibration, made = certification(tmp_path, profile(FOUND)), list[ThresholdProfile]()

    def run(one: Calibration) -> int | None:
        made.append(one.run())
        return made[-1].certificate.attempt

    def plan(one: Calibration) -> int | None:
        plans.append(one.plan())
        return plans[-1].attempt

    plans, first = list[Plan](), (1, attempt_level(0.95, 1))
    assert in_turn(calibration, ["fsd-calib", "fsd-calib"], run) == []
    assert [found.certificate.certified for found in made] == [True, True]
    assert [(found.certificate.attempt, found.certificate.delta) for found in made] == [first, first]
    assert (tmp_path / "out" / "fsd-calib" / "profile.json").exists()
    in_turn(calibration, ["fsd-calib", "fsd-calib"], plan)
    assert [(one.attempt, one.delta) for one in plans] == [first, first]
    other = certification(tmp_path, profile({**FOUND, "threshold": 0.68}), out=tmp_path / "other")
    assert other.run().certificate.attempt == 2


def test_a_certified_setting_that_is_slower_than_sd_can_be_certified_elsewhere() -> None:
    found = {**FOUND, **SLOWER, "estimate.threshold": FOUND["threshold"]}
    slower = profile(found)
    assert setting_of(slower) == setting_of(profile(FOUND))
    assert slower.estimate is not None
    elsewhere = slower.estimate.model_copy(update={"draft": "other"})
    refused = slower.model_copy(update={"estimate": elsewhere})
    assert "drafts with 'other', and decoders of the profile with" in usage_error(lambda: setting_of(refused))


def test_models_are_loaded_as_the_profile_recorded_them() -> None:
    recorded = profile(FOUND)
    quantised = recorded.target.model_copy(update={"quantization": "torchao-int8wo", "revision": "abc"})
    found = recorded.model_copy(update={"target": quantised})
    own = as_recorded(found, RunConfig(), (quantised.id, found.draft.id))
    assert (own.loading.target.quantization, own.loading.draft.scheme) == ("torchao-int8wo", None)
    assert (own.loading.target.revision, own.dtype) == ("abc", found.target.dtype)
    assert as_recorded(found, RunConfig(dtype="bfloat16"), (quantised.id, found.draft.id)).dtype == "bfloat16"
    engine = EngineInfo(name="vllm", version="1", arguments={"quantization": "fp8"})
    in_vllm = found.model_copy(update={"engine": engine})
    assert as_recorded(in_vllm, RunConfig(engine="vllm"), ("big", "small")).engine_args == {"quantization": "fp8"}
    assert as_recorded(found, RunConfig(engine="vllm"), ("big", "small")).engine_args is None


def test_engines_in_turn_end_with_the_first_that_does_not_certify(tmp_path: Path) -> None:
    calibration, asked = certification(tmp_path, profile(FOUND)), list[str]()
    engines = ["fsd-calib", "fsd-calib"]
    assert in_turn(calibration, engines, lambda one: asked.append(one.config.engine)) == ["fsd-calib"]
    assert asked == ["fsd-calib"]


def test_what_engines_in_turn_cannot_do_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="engine is 'tgi'; it must be one of"):  # before the first runs
        in_turn(certification(tmp_path, profile(FOUND)), ["fsd-calib", "tgi"], lambda one: 1)
    searching = replace(certification(tmp_path, profile(FOUND)), fixed=None)
    with pytest.raises(UsageError, match="engines are fsd-calib and vllm, which can certify one setting in turn, not"):
        in_turn(searching, ["fsd-calib", "vllm"], lambda one: 1)


def test_what_has_no_threshold_cannot_be_certified() -> None:
    found = profile({"outcome": "lossless", "threshold": None, "lossy": False, "certificate.certified": False})
    with pytest.raises(UsageError, match=r"has no threshold .*; calibrate instead"):
        setting_of(found)


@pytest.mark.parametrize(("kind", "draft"), [("eagle", Eagle("h")), ("ngram", NGram())])
def test_heads_and_n_grams_take_no_options_from_the_profile(kind: str, draft: Any) -> None:
    """Their dtype is that of the target, which n-grams do not record."""
    target = {"dtype": "bfloat16", "quantization": "bnb-8bit", "attention": "eager"}
    of_kind = {"kind": kind, "dtype": "bfloat16" if kind == "eagle" else "float32"}
    found = profile({**{f"target.{name}": value for name, value in target.items()},
                     **{f"draft.{name}": value for name, value in of_kind.items()}})  # fmt: skip
    run = as_recorded(found, RunConfig(), ("big", draft))
    assert run.dtype == "bfloat16"
    assert (run.loading.target.quantization, run.loading.target.attn) == ("bnb-8bit", "eager")
    assert run.draft_model_kwargs is None
    assert run.loading.draft.quantization == "bnb-8bit"  # as a model would be loaded, which this is not
