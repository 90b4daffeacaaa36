"""Certifying the setting of a profile anew: nothing is searched, and it counts as an attempt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fsd_calib.calibration.api import Calibration
from fsd_calib.calibration.goal import Goal
from fsd_calib.calibration.recertify import decoding_of, setting_of
from fsd_calib.calibration.run_config import RunConfig
from fsd_decoding.errors import UsageError
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from support.calibration.profiles import profile
from support.models import tiny_calibration
from support.models.tiny_calibration import far_apart
from support.models.tiny_models import word_tokenizer

# Nearly all is accepted, so that it is faster than lossless decoding, however busy the machine is.
FOUND = {"threshold": 0.69, "draft_length": 4, "divergence": "js"}


def certification(folder: Path, found: ThresholdProfile, **run: Any) -> Calibration:
    settings: dict[str, Any] = {"out": folder / "out", "cache": folder, "state": folder, "timing": "none", **run}
    return Calibration(
        tiny_calibration.task(240), *far_apart(), Goal(0.5, serve_batch=8), decoding_of(found), RunConfig(**settings),
        word_tokenizer(), fixed=setting_of(found),
    )  # fmt: skip


def test_the_setting_is_tested_and_nothing_else(tmp_path: Path) -> None:
    found = profile(FOUND)
    made = certification(tmp_path, found).run()
    assert made.outcome == "certified"
    assert (made.rule, made.divergence, made.draft_length, made.threshold) == ("fsd-coupled", "js", 4, 0.69)
    assert (made.certificate.frozen, made.certificate.attempt) == (1, 1)
    assert made.effort is not None
    assert made.effort.trials == 0
    assert {p.threshold for p in made.curve if p.rule == "fsd-coupled" and p.source == "certification"} == {0.69}


def test_it_is_an_attempt_like_any_other_and_the_plan_says_at_which_level(tmp_path: Path) -> None:
    assert certification(tmp_path, profile(FOUND)).run().certificate.attempt == 1
    again = certification(tmp_path, profile(FOUND)).run()
    assert (again.certificate.attempt, again.effort and again.effort.certification.decoded) == (1, 0)
    other = certification(tmp_path / "other", profile({**FOUND, "threshold": 0.68}), cache=tmp_path, state=tmp_path)
    assert other.plan().delta == pytest.approx(0.05 * 6 / (3.141592653589793**2 * 4))
    assert other.run().certificate.attempt == 2


def test_what_has_no_threshold_cannot_be_certified() -> None:
    none = {"outcome": "lossless-suffices", "threshold": None, "lossy": False, "certificate": {"certified": False}}
    found = profile({}).model_copy(update=none)
    with pytest.raises(UsageError, match=r"has no threshold .*; calibrate instead"):
        setting_of(found)
