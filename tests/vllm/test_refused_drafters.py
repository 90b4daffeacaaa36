"""Which drafters and rules an engine of vLLM refuses with a profile: by name, before anything is patched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.envs import disable_envs_cache
from vllm.v1.spec_decode.draft_model import DraftModelProposer
from vllm.v1.spec_decode.eagle import EagleProposer
from vllm.v1.spec_decode.gemma4 import Gemma4Proposer
from vllm.v1.spec_decode.medusa import MedusaProposer
from vllm.v1.spec_decode.step3p5 import Step3p5MTPProposer

from fsd_calib.vllm_plugin.engine_checks import check_engine, check_measurable, doubts
from fsd_calib.vllm_plugin.rejection_sampler import _check_drafter
from fsd_calib.vllm_plugin.settings import ServeSettings
from fsd_calib.vllm_plugin.telemetry.telemetry import Telemetry
from fsd_common.errors import UsageError
from fsd_data import pair_paths
from support.calibration.profiles import profile

TARGET, DRAFT = (str(path) for path in pair_paths())
DRAFTING = {"model": DRAFT, "method": "draft_model", "num_speculative_tokens": 3}
PROFILE = profile({"score": "js"})


def configuration(speculation: dict[str, Any], **additional: Any) -> VllmConfig:
    arguments = EngineArgs(model=TARGET, dtype="float32", max_model_len=200, enforce_eager=True,
                           speculative_config=speculation, additional_config=additional)  # fmt: skip
    return arguments.create_engine_config()


@pytest.fixture(scope="module")
def accepted() -> VllmConfig:
    return configuration(DRAFTING)


def test_a_draft_model_is_accepted(accepted: VllmConfig) -> None:
    check_engine(accepted, PROFILE)


@pytest.mark.parametrize("changes", [
    {"method": "ngram", "model": None, "prompt_lookup_max": 3},
    {"parallel_drafting": True},
    {"rejection_sample_method": "block"},
    {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.5, 0.4, 0.3]},
    {"use_heterogeneous_vocab": True},
], ids=lambda changes: "-".join(map(str, next(iter(changes.items())))))  # fmt: skip
def test_refused_when_the_engine_is_configured(changes: dict[str, Any], tmp_path: Path) -> None:
    wanted = {name: value for name, value in {**DRAFTING, **changes}.items() if value is not None}
    name, value = next(iter(changes.items()))
    PROFILE.save(tmp_path / "profile.json")
    with pytest.raises(UsageError) as refusal:
        configuration(wanted, fsd={"profile": str(tmp_path / "profile.json")})
    message = str(refusal.value)
    assert "\n" not in message
    assert (repr(value) if isinstance(value, str) else f'"{name}"') in message


@pytest.mark.parametrize("method", [
    "suffix", "medusa", "mlp_speculator", "dspark", "ngram_gpu", "custom_class", "extract_hidden_states",
])  # fmt: skip
def test_refused_without_distribution(accepted: VllmConfig, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accepted.speculative_config, "method", method)
    with pytest.raises(UsageError, match=f"the drafter is '{method}'"):
        check_engine(accepted, PROFILE)


@pytest.mark.parametrize("kind", ["gemma4_mtp", "step3p5_mtp"])
def test_refused_with_a_proposer_of_its_own(accepted: VllmConfig, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accepted.speculative_config, "method", "mtp")
    monkeypatch.setattr(accepted.speculative_config.draft_model_config.hf_config, "model_type", kind)
    with pytest.raises(UsageError, match=f"the drafter is '{kind}'"):
        check_engine(accepted, PROFILE)


@pytest.mark.parametrize(("proposer", "name"), [
    (Gemma4Proposer, "_greedy_sample"), (Step3p5MTPProposer, "propose"), (MedusaProposer, "propose"),
])  # fmt: skip
def test_a_worker_refuses_proposers_that_it_does_not_know(proposer: type, name: str) -> None:
    with pytest.raises(UsageError, match=f"{proposer.__name__}, which has a {name} of its own"):
        _check_drafter(object.__new__(proposer))


@pytest.mark.parametrize("proposer", [DraftModelProposer, EagleProposer])
def test_a_worker_knows_vllms_common_proposers(proposer: type) -> None:
    _check_drafter(object.__new__(proposer))


@pytest.fixture
def second_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's V2 model runner runs."""
    disable_envs_cache()  # an engine that was started earlier in this process has filled it
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")


@pytest.mark.usefixtures("second_runner")
def test_the_v2_runner_is_refused_what_it_cannot_give(accepted: VllmConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="\"draft_sample_method\" is 'probabilistic'"):
        check_engine(accepted, PROFILE)
    monkeypatch.setattr(accepted.speculative_config, "draft_sample_method", "probabilistic")
    check_engine(accepted, PROFILE)
    (said,) = (doubt for doubt in doubts(accepted, PROFILE) if "V2 model runner" in doubt)
    assert "no GPU has followed a profile yet" in said
    monkeypatch.setattr(accepted.device_config, "device_type", "cuda")  # a CPU refuses to sample at all
    sampled = profile({"rule": "fsd-sd", "score": "fly@1@2", "logits": "processed", "sampling.temperature": 0.6})
    with pytest.raises(UsageError, match=r"draws in a kernel; set VLLM_USE_V2_MODEL_RUNNER=0 .* or vLLM's own FLy: "):
        check_engine(accepted, sampled)
    monkeypatch.setattr(accepted.parallel_config, "enable_batch_sharded_sampling", True)
    with pytest.raises(UsageError, match="--enable-batch-sharded-sampling"):
        check_engine(accepted, PROFILE)


@pytest.mark.usefixtures("second_runner")
def test_calibrations_do_not_measure_in_the_v2_runner(accepted: VllmConfig) -> None:
    with pytest.raises(UsageError, match="calibrations measure in vLLM's V1 model runner"):
        check_measurable(accepted, PROFILE)


def test_drafters_of_another_vocabulary_are_refused(accepted: VllmConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accepted.speculative_config, "method", "eagle")
    check_engine(accepted, PROFILE)
    monkeypatch.setattr(accepted.speculative_config.draft_model_config.model_arch_config, "vocab_size", 500)
    with pytest.raises(UsageError, match="vocab_size is 500, the target's 979"):
        check_engine(accepted, PROFILE)


def test_ranks_that_share_requests_are_refused(accepted: VllmConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accepted.parallel_config, "prefill_context_parallel_size", 2)
    with pytest.raises(UsageError, match="--prefill-context-parallel-size"):
        check_engine(accepted, PROFILE)


def test_independent_data_parallel_engines_have_folders_of_their_own(tmp_path: Path) -> None:
    """vLLM makes the engines of a dense model independent: each is rank 0 of 1, and only the index is its own."""
    folders = []
    for index in range(2):
        config = configuration(DRAFTING)
        config.parallel_config.data_parallel_size = 2
        config.parallel_config.data_parallel_index = index
        config.parallel_config.reconfigure_for_independent_dp_rank()
        counters, records = tmp_path / "counters", tmp_path / "records"
        given = ServeSettings("profile.json", records=str(records), counters=str(counters), engines=2)
        Telemetry(PROFILE, given, config).close()
        folders += [counters / f"engine-{index}.counters", records / f"engine-{index}"]
    assert all(folder.exists() for folder in folders)


@pytest.mark.parametrize(("score", "refused"), [("js", False), ("kl_qp", False), ("kl_pq", True), ("ag", True)])
def test_refused_where_nothing_could_be_accepted(
    accepted: VllmConfig, score: str, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        accepted.speculative_config.draft_model_config.hf_config, "draft_vocab_size", 500, raising=False
    )
    following = profile({"score": score, **_of_every_point(score)})
    if not refused:
        check_engine(accepted, following)
        return
    with pytest.raises(UsageError, match=f"500 of the target's 979 tokens, so {score} is infinite"):
        check_engine(accepted, following)


def _of_every_point(score: str) -> dict[str, Any]:
    return {f"curve.{point}.setting.score": score for point in range(len(PROFILE.curve))}
