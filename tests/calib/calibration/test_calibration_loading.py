"""Calibrations of models that are loaded in other ways: keys of what they decode, fresh processes, the profile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from fsd_calib import calibrate
from fsd_calib.calibration.session import open_session
from fsd_calib.calibration.timing import Timer
from fsd_calib.engines.cache_key import CacheKey
from fsd_calib.engines.own import OwnEngine, OwnEngineSource
from fsd_calib.measuring.fresh_process import in_fresh_process
from fsd_calib.measuring.timing_job import run_job
from fsd_calib.options.goal import Goal
from fsd_calib.options.run_config import RunConfig
from fsd_common.errors import UsageError
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.model_options import Loading
from fsd_decoding.profile.setting import Setting
from fsd_decoding.workers.model_workers import Sources
from support.models import tiny_calibration
from support.models.tiny_pair import saved

TASK = tiny_calibration.task(60)
EAGER = {"attn": "eager"}
FUZZY = Setting("fsd-coupled", "js", 2, 0.1)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return saved(tmp_path_factory.mktemp("pair"))


def key(models: tuple[Path, Path], setting: Setting = FUZZY, **options: Any) -> CacheKey:
    return OwnEngine(SpeculativeDecoder.from_pretrained(*models, **options), TASK).key(setting, 0)


def test_what_changes_texts_has_a_key_of_its_own(models: tuple[Path, Path]) -> None:
    ways: list[dict[str, Any]] = [{}, {"model_kwargs": EAGER}, {"draft_model_kwargs": EAGER}, {"dtype": "bfloat16"}]
    keys = [key(models, device="cpu", **way) for way in ways]
    assert len({one.hash for one in keys}) == 4
    assert keys[0] == key(models, device="cpu", model_kwargs={"attn": "sdpa"})


def test_how_the_draft_is_run_is_no_part_of_the_targets_own_texts(models: tuple[Path, Path]) -> None:
    alone = Setting("target", "js", 1)
    assert key(models, alone, draft_model_kwargs=EAGER) == key(models, alone)
    assert key(models, alone, model_kwargs=EAGER) != key(models, alone)


def test_where_weights_are_does_not_change_a_key(models: tuple[Path, Path]) -> None:
    pytest.importorskip("accelerate", reason="device_map needs accelerate")
    assert key(models, model_kwargs={"device_map": "cpu"}) == key(models, device="cpu")


def test_a_quantised_model_has_keys_of_its_own(models: tuple[Path, Path]) -> None:
    pytest.importorskip("torchao", reason="torchao does the quantising")
    plain, int8 = {"quantization": "none"}, {"quantization": "torchao-int8wo"}
    ways: list[dict[str, Any]] = [{"model_kwargs": int8}, {"model_kwargs": int8, "draft_model_kwargs": plain}, {}]
    assert len({key(models, dtype="float32", device="cpu", **way).hash for way in ways}) == 3


@pytest.mark.slow
def test_fresh_processes_load_models_in_the_same_way(models: tuple[Path, Path]) -> None:
    """Keys of what was chosen tell that they do; without the options they refuse the job."""
    loading = Loading.of(EAGER, {"attn": "sdpa"})
    decoder = SpeculativeDecoder.from_pretrained(*models, model_kwargs=loading.target, draft_model_kwargs=loading.draft)
    sources = Sources(models[0], models[1:], loading=loading)
    with open_session(OwnEngine(decoder, TASK), TASK, RunConfig()) as session:
        timer = Timer(session, Goal(min_acc=0.7), "careful", sources)
        job = timer._job([session.setting("sd", 2), FUZZY], session.tuning.problems[:12], 1, 1.0)
    assert in_fresh_process(run_job, job).of(FUZZY).value > 0
    with pytest.raises(UsageError, match="the models or library versions have changed since the calibration"):
        run_job(replace(job, source=replace(cast(OwnEngineSource, job.source), sources=Sources(models[0], models[1:]))))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"model_kwargs": {"attn": "flex_attention"}}, "attn is 'flex_attention'; it must be sdpa or eager"),
        ({"model_kwargs": {"device_map": "auto"}, "device": "cpu"}, "device is 'cpu' and device_map is 'auto'"),
        ({"draft_model_kwargs": {"revision": "v1"}}, "the draft's revision is 'v1', but .* is a local folder"),
    ],
)
def test_what_cannot_be_loaded_so_is_refused_first(models: tuple[Path, Path], given: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        calibrate(TASK, *models, min_acc=0.7, **given)


@pytest.mark.slow
def test_a_profile_records_how_its_models_were_loaded(models: tuple[Path, Path]) -> None:
    made = calibrate(
        tiny_calibration.task(240), *models, min_acc=0.7, draft_length=2, score="js", trials=2, timing="none",
        explore=True, model_kwargs=EAGER, draft_model_kwargs={"attn": "sdpa"},
    )  # fmt: skip
    assert (made.target.attention, made.draft.attention) == ("eager", "sdpa")
    decoder = SpeculativeDecoder.from_pretrained(*models, profile=made)
    assert decoder.target.config._attn_implementation == "eager"
