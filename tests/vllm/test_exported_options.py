"""`fsd-profile export --to vllm`: vLLM's own configuration takes what is printed."""

from __future__ import annotations

import json
import shlex
from typing import Any, get_args

import pytest
from vllm.config.speculative import RejectionSampleMethod, SpeculativeConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.version import __version__

from fsd_calib.exports.engines import export_profile
from support.calibration.profiles import UNCERTIFIED
from support.vllm_engine import DRAFT, bundled_profile

SAMPLED = {"sampling": {"temperature": 0.6, "top_k": 20, "top_p": 0.95}}
FLY = {"rule": "fsd-sd", "score": "fly@3@2", "threshold": 0.25, "logits": "processed", "draft_length": 6}
BLOCK = {**UNCERTIFIED, "rule": "sd-block"}


def configured(changes: dict[str, Any]) -> SpeculativeConfig:
    """What vLLM makes of the command for a profile of the bundled pair."""
    words = shlex.split(export_profile(bundled_profile(changes), "vllm").replace("\\\n", ""), comments=True)
    speculation = json.loads(words[words.index("--speculative-config") + 1])
    config = EngineArgs(
        words[words.index("serve") + 1], dtype="float32", speculative_config=speculation
    ).create_engine_config()
    assert config.speculative_config is not None
    return config.speculative_config


@pytest.mark.parametrize(("method", "changes"), [("fly", FLY), ("block", BLOCK)])
@pytest.mark.parametrize("sampled", [False, True], ids=["greedy", "sampled"])
def test_vllm_takes_the_options(method: str, changes: dict[str, Any], sampled: bool) -> None:
    if method not in get_args(RejectionSampleMethod):
        pytest.skip(f"vLLM {__version__} has no rejection_sample_method {method!r}")
    spec = configured(changes | (SAMPLED if sampled else {}))
    assert (spec.method, spec.rejection_sample_method) == ("draft_model", method)
    assert spec.draft_model_config.model == DRAFT
    assert spec.num_speculative_tokens == (6 if method == "fly" else 4)
    assert spec.draft_sample_method == ("probabilistic" if sampled else "greedy")
    if method == "fly":
        assert (spec.fly_window_size, spec.fly_entropy_top_k) == (3, 2)
        assert spec.fly_entropy_threshold == pytest.approx(2 / 2.718281828459045 - 0.25, abs=1e-8)
