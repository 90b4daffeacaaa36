"""Profiles with a judge in vLLM: followed where p and q suffice, refused by name where the text before is read."""

from __future__ import annotations

import pytest

from fsd_calib.vllm_plugin.engine_checks import check_profile
from fsd_common.errors import UsageError
from fsd_decoding.judging.model import JudgeModel
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from support.calibration.profiles import profile
from support.models.judges import judge


def profile_of(own: JudgeModel) -> ThresholdProfile:
    return profile({"score": own.name, "divergence": own.name, "judge": own.model_dump(mode="json")})


def fitting(**changes: object) -> JudgeModel:
    return judge(**{"target": "b", "draft": "s", "tokenizer": "t"} | changes)  # of the invented profile's models


def test_a_judge_of_p_and_q_can_be_followed() -> None:
    check_profile(profile_of(fitting()))


def test_one_that_reads_the_text_is_refused() -> None:
    own = fitting(features=["log_p_x", "margin", "before_letters"])
    with pytest.raises(UsageError, match=f"the profile's {own.name} reads the token before a drafted one"):
        check_profile(profile_of(own))
