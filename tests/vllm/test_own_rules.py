"""Engines in which a rule of vLLM's own decides: the profile has to be of it, and FSD is off."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.envs import disable_envs_cache
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams

from fsd_calib.engines.base import DecodingRequest, KeyedPrompt
from fsd_calib.vllm_plugin import KEY
from fsd_calib.vllm_plugin.command import serve_command
from fsd_calib.vllm_plugin.engine_checks import check_engine, doubts
from fsd_calib.vllm_plugin.own_rules import fly_options
from fsd_calib.vllm_plugin.request_checks import _check
from fsd_calib.vllm_plugin.settings import ServeSettings
from fsd_calib.vllm_plugin.start import follow
from fsd_calib.vllm_plugin.worker import FuzzyCPUWorker
from fsd_common.errors import UsageError
from fsd_decoding.adaptive import Schedule
from fsd_decoding.profile.parts import PolicyInfo
from fsd_decoding.profile.setting import Setting
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from fsd_decoding.scores import Fly, score_named
from support.calibration.profiles import UNCERTIFIED
from support.vllm_engine import DRAFT, LENGTH, TARGET, arithmetic, bundled_profile, engine_source, saved, worker

FLY = {"rule": "fsd-sd", "score": "fly@3@2", "threshold": 0.25, "logits": "processed"}
BLOCK = {**UNCERTIFIED, "rule": "sd-block", "draft_length": LENGTH}


def configuration(method: str) -> VllmConfig:
    """The configuration of an engine; vLLM 0.32 does not know FLy, so its options are set afterwards."""
    chosen = {} if method == "fly" else {"rejection_sample_method": method}
    drafting = {"model": DRAFT, "method": "draft_model", "num_speculative_tokens": LENGTH, **chosen}
    config = EngineArgs(model=TARGET, dtype="float32", max_model_len=200, enforce_eager=True,
                        speculative_config=drafting).create_engine_config()  # fmt: skip
    if method == "fly":
        score = score_named("fly@3@2")
        assert isinstance(score, Fly)
        for name, value in {"rejection_sample_method": "fly", **fly_options(score, 0.25)}.items():
            object.__setattr__(config.speculative_config, name, value)
    return config


@pytest.fixture
def second_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's V2 model runner runs."""
    disable_envs_cache()  # an engine that was started earlier in this process has filled it
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")


def test_fly_is_followed_by_the_profile_that_says_its_options() -> None:
    config = configuration("fly")
    check_engine(config, bundled_profile(FLY))
    assert any("vLLM's own FLy decodes" in doubt for doubt in doubts(config, bundled_profile(FLY)))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({}, "the profile is of js <= 0.075; leave it out, or calibrate with --score fly"),
        (UNCERTIFIED, "the profile is of the lossless rule"),
        (FLY | {"score": "fly@2@2"}, '"fly_window_size" is 3 in --speculative-config, and 2 is what'),
        (FLY | {"score": "fly@3@3"}, '"fly_entropy_threshold" is'),
        (FLY | {"threshold": 0.2}, "the profile's fly@3@2 <= 0.2 says; use the options of: fsd-profile export"),
        (FLY | {"policy": PolicyInfo.of(str(Schedule(0.25, 0.5, 9).identity)).model_dump()}, "one T for all tokens"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_other_profiles_are_refused_with_fly(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError) as refusal:
        check_engine(configuration("fly"), bundled_profile(changes))
    (line,) = str(refusal.value).splitlines()
    assert named in line


def test_blocks_are_verified_for_profiles_of_that_rule_alone(request: pytest.FixtureRequest) -> None:
    config = configuration("block")
    request.getfixturevalue("second_runner")
    check_engine(config, bundled_profile(BLOCK))
    assert not any("V2 model runner" in doubt for doubt in doubts(config, bundled_profile(BLOCK)))
    for changes in ({}, UNCERTIFIED, FLY):
        with pytest.raises(UsageError, match="which is not defined over whole blocks; leave it out"):
            check_engine(config, bundled_profile(changes))


def test_the_v1_runner_does_not_verify_blocks() -> None:
    with pytest.raises(UsageError, match="which vLLM's V1 model runner ignores; leave it out, or let the V2 runner"):
        check_engine(configuration("block"), bundled_profile(BLOCK))


def test_the_start_says_that_fsd_is_off_and_refuses_to_record(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = configuration("fly")
    config.additional_config = {KEY: {"profile": saved(tmp_path, FLY), "records": str(tmp_path)}}
    with pytest.raises(UsageError, match="leaves the plugin no step to record; leave one out"):
        follow(config)
    config.additional_config = {KEY: {"profile": saved(tmp_path, FLY)}}
    log = logging.getLogger("vllm.fsd")
    log.addHandler(caplog.handler)
    with caplog.at_level(logging.INFO, "vllm.fsd"):
        follow(config)
    log.removeHandler(caplog.handler)
    assert "LOSSY" in caplog.text
    assert "; vLLM's own 'fly' decides, for all requests alike, and FSD is off: it counts nothing" in caplog.text
    assert "fly@3@2" in ThresholdProfile.from_content(config.additional_config[KEY]["content"]).score


def following(config: VllmConfig, profile: ThresholdProfile) -> VllmConfig:
    own = ServeSettings("profile.json").passed_on(profile.model_dump_json(), "", 1)
    config.additional_config = {KEY: own}
    return config


@pytest.mark.parametrize(
    ("method", "options", "served"),
    [
        ("fly", None, True), ("fly", {"fsd": "on"}, True), ("fly", {"fsd_threshold": 0.25}, True),
        ("fly", {"fsd_threshold": 0.3}, False), ("fly", {"fsd": "off"}, False),
        ("block", None, True), ("block", {"fsd": "off"}, True), ("block", {"fsd_threshold": -2.0}, True),
        ("block", {"fsd_threshold": 0.3}, False),
    ],
    ids=str,
)  # fmt: skip
def test_requests_cannot_choose(method: str, options: dict[str, Any] | None, served: bool) -> None:
    config = following(configuration(method), bundled_profile(FLY if method == "fly" else BLOCK))
    asked = SamplingParams(temperature=0.0, extra_args=options)
    if served:
        _check(config, asked)
    else:
        with pytest.raises(VLLMValidationError, match=f"decodes every request by vLLM's own '{method}'"):
            _check(config, asked)


def test_a_worker_leaves_the_runner_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    config = following(configuration("fly"), bundled_profile(FLY))
    worker: Any = object.__new__(FuzzyCPUWorker)
    worker.vllm_config, worker.model_runner = config, SimpleNamespace(drafter=None)
    monkeypatch.setattr("vllm.v1.worker.gpu_worker.Worker.load_model", lambda self, **_: None)
    worker.load_model()
    assert worker.serving is None
    with pytest.raises(UsageError, match="cannot be reloaded"):
        worker.reload_weights()


def test_a_calibration_gives_fly_each_threshold_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.32 has no FLy: its sampler takes what it is told, and its texts stay exact."""
    task = arithmetic(4)
    engine = engine_source(task).engine(None)
    serving = worker(engine._loaded.llm).serving
    for owner in (serving, engine):
        monkeypatch.setattr(owner, "_by_fly", True)
    monkeypatch.setattr(engine, "intervals_hold", False)
    engine.check_intervals([KeyedPrompt(problem.id, problem.prompt) for problem in task.problems])
    prompts = [KeyedPrompt(problem.id, problem.prompt) for problem in task.problems]
    score, told = score_named("fly@3@2"), []
    assert isinstance(score, Fly)
    for threshold in (0.25, 0.5):
        (first, *_) = engine.decode(DecodingRequest(Setting("fsd-coupled", "fly@3@2", 6, threshold), 0, prompts, 4))
        assert first.interval == (threshold, threshold)  # nobody knows at which others it is the same
        told.append({name: getattr(serving._sampler, name) for name in fly_options(score, threshold)})
    assert told == [fly_options(score, threshold) for threshold in (0.25, 0.5)]
    engine.decode(DecodingRequest(Setting("sd", "fly@3@2", 6), 0, prompts, 4))
    assert serving._sampler.fly_entropy_threshold == math.inf  # nothing is unsure enough
    assert engine.info.arguments == {"rejection_sample_method": "fly"}


def test_a_profile_that_fly_certified_is_served_by_fly(tmp_path: Path) -> None:
    engine = {"name": "vllm", "version": "0.33.0", "arguments": {"rejection_sample_method": "fly"}}
    found = bundled_profile(FLY | {"engine": engine})
    command = serve_command(found, tmp_path / "profile.json")
    assert '"rejection_sample_method": "fly"' in command
    assert "--rejection-sample-method" not in command
    assert not any("own FLy decodes" in doubt for doubt in doubts(configuration("fly"), found))
