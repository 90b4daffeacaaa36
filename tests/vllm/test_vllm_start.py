"""How an engine with a profile starts: what it says, what it refuses, and that without one nothing changes."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from prometheus_client import generate_latest
from vllm.entrypoints.llm import LLM
from vllm.exceptions import VLLMValidationError

from fsd_calib.vllm_plugin import supported_vllm
from fsd_common.errors import UsageError
from support.calibration.profiles import UNCERTIFIED
from support.vllm_engine import (
    DRAFT,
    TARGET,
    arithmetic,
    engine,
    own_texts,
    sampling,
    saved,
    served,
    tokenizer,
    worker,
)

_NGRAM = {"method": "ngram", "model": None, "prompt_lookup_max": 3, "prompt_lookup_min": 1}


def _refusal(path: str, settings: dict[str, Any] | None = None, **keywords: Any) -> str:
    """The one line with which an engine refuses to start."""
    with pytest.raises(UsageError) as caught:
        engine(path, settings, **keywords)
    (line,) = str(caught.value).splitlines()
    return line


@pytest.mark.parametrize(
    ("speculative", "named"),
    [
        (_NGRAM, "the drafter is 'ngram'"),
        ({"method": "suffix", "model": None}, "the drafter is 'suffix'"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_drafters_without_a_distribution_and_other_laws_are_refused(
    tmp_path: Path, speculative: dict[str, Any], named: str
) -> None:
    try:
        assert named in _refusal(saved(tmp_path), speculative_config=speculative)
    except ImportError as error:
        pytest.skip(f"this vLLM cannot build the drafter: {error}")


def test_without_drafting_there_is_nothing_to_follow(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no --speculative-config"):
        LLM(TARGET, dtype="float32", max_model_len=400, additional_config={"fsd": {"profile": saved(tmp_path)}})


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"rule": "fsd"}, "rule is 'fsd'"),
        ({"rule": "ensemble"}, "rule is 'ensemble'"),
        ({"logits": "processed"}, "processed logits"),
        ({"within_support": True}, "target's support"),
        ({"sampling.temperature": 0.6}, 'set "draft_sample_method": "probabilistic"'),
    ],
    ids=lambda value: str(value)[:30],
)
def test_profiles_that_vllm_cannot_follow_are_refused(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    assert named in _refusal(saved(tmp_path, changes))


def test_policies_that_look_at_more_than_tokens_are_refused(tmp_path: Path) -> None:
    entropy = {"name": "entropy", "version": 1, "parameters": {"slope": 1.0, "of": "last"}}
    assert "threshold policy is entropy" in _refusal(saved(tmp_path, {"policy": entropy}))


@pytest.mark.parametrize(
    ("keywords", "named"),
    [
        ({"logprobs_mode": "processed_logprobs"}, "--logprobs-mode is processed_logprobs"),
        ({"enable_lora": True}, "--enable-lora"),
        ({"hf_overrides": {"rope_theta": 5.0}}, "--hf-overrides"),
        ({"hf_config_path": DRAFT}, "--hf-config-path"),
    ],
    ids=str,
)
def test_settings_of_the_engine_that_fsd_would_change_are_refused(
    tmp_path: Path, keywords: dict[str, Any], named: str
) -> None:
    assert named in _refusal(saved(tmp_path), **keywords)


def test_a_front_end_that_does_not_check_requests_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_USE_RUST_FRONTEND", "1")
    assert "VLLM_USE_RUST_FRONTEND is set" in _refusal(saved(tmp_path))


def test_an_edited_profile_is_refused_unless_allowed(tmp_path: Path) -> None:
    path = saved(tmp_path)
    content = json.loads(Path(path).read_text(encoding="utf-8"))
    Path(path).write_text(json.dumps({**content, "threshold": 0.5}), encoding="utf-8")
    assert "was changed after the calibration that wrote it" in _refusal(path)
    assert len(served(engine(path, {"allow_edited": True}), arithmetic(2), sampling())) == 2


@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_profile_of_other_models_is_refused(tmp_path: Path, role: str) -> None:
    path = saved(tmp_path, {f"{role}.fingerprint": "2-" + "0" * 64})
    assert f"the profile's {role} is" in _refusal(path)


def test_a_changed_weight_is_refused(tmp_path: Path) -> None:
    from support.vllm_engine import model

    changed = model("draft", torch.float64)
    changed = type(changed).from_pretrained(DRAFT, dtype=torch.float32)
    with torch.no_grad():
        changed.get_input_embeddings().weight[7, 7] += 1
    changed.save_pretrained(tmp_path / "draft")
    tokenizer().save_pretrained(tmp_path / "draft")
    line = _refusal(saved(tmp_path), speculative_config={"model": str(tmp_path / "draft")})
    assert "the profile's draft is" in line


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"threshold": 0.1}, "no setting 'threshold'"),
        ({"profile": 3}, "it must be a path"),
        ({"record_texts": 0}, "at least 1"),
        ({"allow_edited": "yes"}, "true or false"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_settings_are_checked(tmp_path: Path, settings: dict[str, Any], named: str) -> None:
    assert named in _refusal(saved(tmp_path), settings)


def test_a_missing_profile_is_refused(tmp_path: Path) -> None:
    assert "cannot be read" in _refusal(str(tmp_path / "none.json"))


def test_other_versions_and_missing_names_are_refused_before_anything_changes(tmp_path: Path) -> None:
    from vllm.v1.sample.rejection_sampler import RejectionSampler

    with pytest.raises(UsageError, match=r"vLLM is version 0\.34\.1; .* >=0\.32,<0\.34"):
        supported_vllm.check_vllm("0.34.1")
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(RejectionSampler, "apply_logits_processors")
        assert "no vllm.v1.sample.rejection_sampler.RejectionSampler.apply_logits_processors" in _refusal(
            saved(tmp_path)
        )


def test_the_start_says_what_is_followed_and_that_it_is_lossy(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("vllm")
    log.addHandler(caplog.handler)
    try:
        with caplog.at_level(logging.INFO, "vllm"):
            logging.getLogger("vllm.fsd").setLevel(logging.INFO)
            engine(saved(tmp_path, {"draft_length": 4}))
    finally:
        log.removeHandler(caplog.handler)
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("fsd:")]
    assert any("LOSSY" in line and "js <= 0.075" in line and "'arithmetic'" in line for line in lines)
    assert any("num_speculative_tokens is 5 instead of the profile's 4" in line for line in lines)
    assert all(len(line.splitlines()) == 1 for line in lines)


@pytest.mark.parametrize("options", [None, {"fsd": "off"}], ids=str)
def test_sampled_requests_are_refused_where_vllm_spoils_them(tmp_path: Path, options: dict[str, Any] | None) -> None:
    llm = engine(saved(tmp_path), speculative_config={"draft_sample_method": "probabilistic"})
    with pytest.raises(VLLMValidationError, match="temperatures are uninitialised"):
        served(llm, arithmetic(1), sampling(options, temperature=0.7))


def test_a_cpu_is_told_of_first_as_decoding_exactly_is_no_way_out_there(tmp_path: Path) -> None:
    with pytest.raises(VLLMValidationError, match="temperatures are uninitialised"):
        served(engine(saved(tmp_path)), arithmetic(1), sampling(temperature=0.7))


def test_weights_stay_while_an_engine_serves(tmp_path: Path) -> None:
    llm = engine(saved(tmp_path))
    for changes in (worker(llm).reload_weights, worker(llm).load_model):
        with pytest.raises(UsageError, match="cannot be reloaded; restart it"):
            changes()
    task = arithmetic(2)
    before = served(llm, task, sampling())
    with pytest.raises(UsageError, match="sleep has level 2, which discards the weights"):
        llm.sleep(2)
    llm.wake_up()  # vLLM stopped scheduling before its worker refused
    assert served(llm, task, sampling()) == before
    llm.sleep(1)
    llm.wake_up()
    assert served(llm, task, sampling()) == before


def test_vllms_runner_has_what_is_looked_up(tmp_path: Path) -> None:
    supported_vllm.check_runner(worker(engine(saved(tmp_path))).model_runner)


def test_a_sampled_profile_is_refused_where_vllm_spoils_samples(tmp_path: Path) -> None:
    path = saved(tmp_path, {"sampling.temperature": 0.7})
    assert "temperatures are uninitialised" in _refusal(
        path, speculative_config={"draft_sample_method": "probabilistic"}
    )


def test_a_profile_without_a_threshold_is_served_losslessly(tmp_path: Path) -> None:
    assert served(engine(saved(tmp_path, UNCERTIFIED)), arithmetic(20), sampling()) == own_texts(20)


def test_metrics_count_tokens_by_what_accepted_them(tmp_path: Path) -> None:
    llm = engine(saved(tmp_path))
    before = _tokens(generate_latest().decode())
    task = arithmetic(20)
    completions = served(llm, task, sampling())
    after = _tokens(generate_latest().decode())
    exact, fuzzy, rejected = (after[name] - before.get(name, 0.0) for name in ("exact", "fuzzy", "rejected"))
    emitted = sum(len(tokens) - 1 for tokens in completions)  # the first comes with the prompt
    assert fuzzy > 10 < rejected
    assert emitted * 0.7 < exact + fuzzy <= emitted + 5 * len(completions)


def _tokens(metrics: str) -> dict[str, float]:
    lines = [line for line in metrics.splitlines() if line.startswith("fsd:drafted_tokens_total")]
    found: dict[str, float] = {}
    for line in lines:
        outcome = line.partition('outcome="')[2].partition('"')[0]
        found[outcome] = found.get(outcome, 0.0) + float(line.split()[-1])
    return found


_UNTOUCHED = """
import sys
from vllm.entrypoints.llm import LLM
from vllm.exceptions import VLLMValidationError
from vllm.v1.engine.input_processor import InputProcessor
from vllm.v1.sample.rejection_sampler import RejectionSampler
llm = LLM({target!r}, dtype="float32", max_model_len=400, enforce_eager=True, kv_cache_memory_bytes=64 << 20,
          speculative_config={{"model": {draft!r}, "method": "draft_model", "num_speculative_tokens": 5}})
worker = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
print("modules", sorted(name for name in sys.modules if name.startswith("fsd_calib.vllm_plugin")))
print("classes", type(worker).__module__, type(worker.model_runner.rejection_sampler) is RejectionSampler,
      InputProcessor._validate_params.__module__, "_sample_draft_tokens" in vars(worker.model_runner.drafter))
"""


def test_without_a_profile_nothing_is_replaced_or_even_imported() -> None:
    program = _UNTOUCHED.format(target=TARGET, draft=DRAFT)
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    lines = dict(line.split(" ", 1) for line in ran.stdout.splitlines() if line.startswith(("modules", "classes")))
    assert lines["modules"] == "['fsd_calib.vllm_plugin', 'fsd_calib.vllm_plugin.plugin']"
    assert lines["classes"] == "vllm.v1.worker.cpu_worker True vllm.v1.engine.input_processor False"
