"""Whether an engine's settings allow to follow a profile, and what of its certificate they leave."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import torch

from fsd_calib.vllm_plugin import KINDS, METHOD, RULES, own_rules
from fsd_calib.vllm_plugin.judge import policy_of
from fsd_calib.vllm_plugin.settings import Followed, hidden_noise, other_law
from fsd_common.errors import UsageError
from fsd_decoding.drafters.vllm_draft import METHODS
from fsd_decoding.judging.score import Judge
from fsd_decoding.policies.shapes import Schedule
from fsd_decoding.profile.parts import IN_WORDS, EngineInfo
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from fsd_decoding.scores import Fly, Gated, score_named

READS_CONTEXT = (
    "reads the token before a drafted one, or its place in the text, which vLLM does not show; calibrate with --judge "
    "auto, whose judges read neither"
)
_NEED_ALL_TOKENS = ("ag", "kl_pq")  # infinite where the draft gives a token no probability that the target gives some
_COMPARED = {"tensor_parallel_size", "quantization", "kv_cache_dtype", "enforce_eager"}
"""Arguments of an engine that are compared with the profile's, or that change the last bits alone."""

_CLASSES = ("vllm.v1.worker.cpu_worker.CPUWorker", "vllm.v1.worker.gpu_worker.Worker")


def check_profile(profile: ThresholdProfile) -> None:
    """Raises UsageError with the first reason why no engine can follow the profile."""
    profile.require_addons(profile.score)
    for reason in _of_profile(profile):
        raise UsageError(reason)
    policy_of(profile)


def uses_processor(config: Any, profile: ThresholdProfile, recorded: bool) -> bool:
    """Whether vLLM's own extension point suffices to follow the profile; see `target_scores.py`.

    Args:
        recorded: whether the texts that are served are, for which the drafts' logits are needed.
    """
    if not config.use_v2_model_runner or own_rules.own_rule(config) is not None or profile.threshold is None:
        return False
    score, policy = score_named(profile.score), policy_of(profile)
    reads_more = score.reads_draft or score.reads_noise or score.window > 0
    of_target = policy is None or isinstance(policy, Schedule) or getattr(policy, "signal", None) == "target"
    return not reads_more and of_target and not recorded


def check_engine(config: Any, profile: ThresholdProfile, recorded: bool = False) -> None:
    """Raises UsageError with the first reason why the engine cannot follow the profile.

    Args:
        recorded: see `uses_processor`.
    """
    check_profile(profile)
    for reason in _obstacles(config, profile):
        raise UsageError(reason)
    if own_rules.own_rule(config) is not None:
        for reason in own_rules.obstacles(config, profile):
            raise UsageError(reason)
    elif config.use_v2_model_runner and config.parallel_config.enable_batch_sharded_sampling:
        raise UsageError("--enable-batch-sharded-sampling cannot be combined with fsd; leave it out")
    elif config.use_v2_model_runner and not uses_processor(config, profile, recorded):
        for reason in _of_runner_v2(config, profile):
            raise UsageError(reason)


def check_measurable(config: Any, first: Followed) -> None:
    """Raises UsageError with the first reason why a calibration cannot measure settings in the engine."""
    for reason in _obstacles(config, first):
        raise UsageError(reason)
    if config.use_v2_model_runner:
        raise UsageError(
            "calibrations measure in vLLM's V1 model runner, and something in the engine's arguments needs the V2 one; "
            "leave that out"
        )


def _is_greedy(followed: Followed) -> bool:
    return followed.sampling.temperature == 0


def _obstacles(config: Any, followed: Followed) -> Iterator[str]:
    yield from _of_speculation(config.speculative_config, followed)
    yield from _of_engine(config, followed)


def _of_profile(profile: ThresholdProfile) -> Iterator[str]:
    if profile.threshold is not None and profile.rule not in RULES:
        yield (f"the profile's rule is {profile.rule!r}; vLLM can follow {' and '.join(RULES)}; calibrate with one")
    if profile.logits != "raw" and score_named(profile.score).on is None:
        yield f"the profile's {profile.score} is of processed logits, and vLLM's of raw ones: calibrate on these"
    if profile.threshold is not None and (hidden := hidden_noise(profile.score, _is_greedy(profile))):
        yield f"the profile is greedy, and its {hidden}; calibrate with another score, or sampling"
    if profile.threshold is not None and (law := other_law(profile.rule, profile.score, _is_greedy(profile))):
        yield f"the profile samples, and its {law}; calibrate with that rule"
    if profile.threshold is not None and isinstance(score := score_named(profile.score), Judge) and score.reads_context:
        yield f"the profile's {profile.score} {READS_CONTEXT}"
    if profile.within_support:
        yield "the profile rejects tokens outside the target's support, which vLLM cannot; calibrate without that"
    if profile.early_stop is not None:
        yield "the profile ends drafts by a predictor, which vLLM cannot; calibrate without"
    if profile.stop_policy is not None:
        yield f"the profile ends drafts by the stop policy {profile.stop_policy}, which vLLM cannot; calibrate without"
    if profile.draft.kind not in KINDS:
        yield (
            f"the profile's draft is the {IN_WORDS[profile.draft.kind]} {profile.draft.id!r}, and vLLM follows "
            "profiles of draft models and heads; calibrate with one"
        )
    if profile.beams is not None:
        yield f"the profile is of {profile.beams.number} beams, which vLLM decodes without it; calibrate without beams"
    if profile.followed.tree is not None:
        yield "the profile drafts trees, which vLLM does not; calibrate chains"
    if profile.sampling.min_p is not None:
        yield (
            f"the profile samples with min_p {profile.sampling.min_p:g}, which vLLM refuses in speculative decoding; "
            "calibrate without it"
        )


def _of_speculation(spec: Any, followed: Followed) -> Iterator[str]:
    if spec is None:
        yield "there is no --speculative-config, so nothing is drafted; `fsd-profile vllm` prints one for the profile"
        return
    if spec.method not in METHODS:
        yield (
            f"the drafter is {spec.method!r}, whose drafts have no distribution to compare; use one of "
            f'{", ".join(METHODS)} as "method" in --speculative-config'
        )
    elif spec.use_gemma4_mtp() or spec.use_step3p5_mtp():
        kind = spec.draft_model_config.hf_config.model_type
        yield f"the drafter is {kind!r}, which drafts in a way of its own that fsd does not know; use another drafter"
    elif reason := _other_vocabulary(spec) or _unreachable(spec, followed.score):
        yield reason
    unsupported = {
        "parallel_drafting": spec.parallel_drafting and spec.method != "dflash",  # which drafts so by itself
        "use_heterogeneous_vocab": spec.use_heterogeneous_vocab,
        "use_local_argmax_reduction": spec.use_local_argmax_reduction,
        "enable_adaptive_verification": spec.enable_adaptive_verification,
        "num_speculative_tokens_per_batch_size": spec.num_speculative_tokens_per_batch_size,
    }
    for name, on in unsupported.items():
        if on:
            yield f'"{name}" in --speculative-config cannot be combined with fsd; leave it out'
    if followed.sampling.temperature > 0 and spec.draft_sample_method != "probabilistic":
        yield (
            f'the profile samples (temperature {followed.sampling.temperature:g}), but "draft_sample_method" is '
            f'{spec.draft_sample_method!r}; set "draft_sample_method": "probabilistic" in --speculative-config'
        )


def _other_vocabulary(spec: Any) -> str | None:
    """Returns why the logits of draft and target cannot be compared; None: they are over one vocabulary.

    A head of fewer tokens (`draft_vocab_size`) has its target's `vocab_size`, over which vLLM scatters its logits.
    """
    of_target, of_draft = spec.target_model_config.get_vocab_size(), spec.draft_model_config.get_vocab_size()
    if of_draft == of_target:
        return None
    return (
        f"the drafter's vocab_size is {of_draft}, the target's {of_target}; fsd compares distributions over one "
        "vocabulary: use another drafter"
    )


def _unreachable(spec: Any, score: str) -> str | None:
    """Returns why no token can have a finite score; None: tokens can."""
    of_target = spec.target_model_config.get_vocab_size()
    of_draft = getattr(spec.draft_model_config.hf_config, "draft_vocab_size", None) or of_target
    own = score_named(score)
    compared = own.divergence if isinstance(own, Gated) else own
    if of_draft >= of_target or compared.written not in _NEED_ALL_TOKENS:
        return None
    return (
        f"the drafter can draft {of_draft} of the target's {of_target} tokens, so {score} is infinite everywhere "
        "and would accept nothing; calibrate with another score, such as js"
    )


def _of_engine(config: Any, followed: Followed) -> Iterator[str]:
    if config.parallel_config.worker_cls not in _CLASSES:
        yield f"the worker is {config.parallel_config.worker_cls}; fsd profiles are followed on CUDA GPUs and CPUs"
    if os.environ.get("VLLM_USE_RUST_FRONTEND", "0") not in ("", "0"):
        yield "VLLM_USE_RUST_FRONTEND is set, and that front end does not check requests' fsd options; unset it"
    if config.parallel_config.pipeline_parallel_size > 1:
        yield "fsd needs the drafts of every step at the next one, which pipeline stages interleave; use 1 stage"
    if config.parallel_config.prefill_context_parallel_size > 1:
        yield "--prefill-context-parallel-size splits requests over ranks, which fsd counts on one of; leave it out"
    if config.weight_transfer_config is not None:
        yield "--weight-transfer-config lets the target change, and the profile is of one target; leave it out"
    if config.model_config.hf_overrides:
        yield "--hf-overrides changes the target, and the profile is of the checkpoint as it is; leave it out"
    if config.model_config.hf_config_path not in (None, config.model_config.model):
        yield "--hf-config-path changes the target, and the profile is of the checkpoint as it is; leave it out"
    if config.model_config.uses_mrope and followed.policy is not None and followed.policy.name == "schedule":
        yield "the profile's T follows positions, which M-RoPE counts otherwise; calibrate without a schedule"
    if config.model_config.enable_prompt_embeds and followed.policy is not None and followed.policy.name == "phase":
        yield "--enable-prompt-embeds lets prompts have no tokens, and the profile's T follows them; leave it out"
    if config.lora_config is not None:
        yield "--enable-lora lets requests change the target, and the profile is of one target; leave it out"
    if config.model_config.logprobs_mode.startswith("processed"):
        yield (
            f"--logprobs-mode is {config.model_config.logprobs_mode}, whose values fsd would change; use "
            "raw_logprobs or raw_logits"
        )
    if getattr(config, "watermark_config", None) is not None:
        yield "--watermark-config cannot be combined with fsd; leave it out"
    if followed.sampling.temperature > 0 and (fault := sampling_fault(config)):
        yield fault


def _of_runner_v2(config: Any, followed: Followed) -> Iterator[str]:
    if config.speculative_config.draft_sample_method != "probabilistic":
        yield (
            "vLLM's V2 model runner keeps the drafts' logits only if \"draft_sample_method\" is 'probabilistic'; set "
            "that in --speculative-config, also to decode greedily"
        )
    if followed.threshold is not None and (hidden := hidden_noise(followed.score, _is_greedy(followed), False)):
        own = " or vLLM's own FLy: fsd-profile export --to vllm" if isinstance(score_named(followed.score), Fly) else ""
        yield f"the profile samples, and its {hidden}; set VLLM_USE_V2_MODEL_RUNNER=0 to use the V1 runner{own}"


def doubts(config: Any, profile: ThresholdProfile) -> Iterator[str]:
    """Yields warnings of settings that the profile's certificate is not for."""
    if own_rules.own_rule(config) == "fly" and not own_rules.by_own_fly(profile):
        yield f"vLLM's own FLy decodes, and the profile is of {profile.engine_name}: its certificate is not for that"
    elif (doubt := profile.engine_doubt("vllm")) is not None:
        yield doubt
    if own_rules.own_rule(config) is None and config.use_v2_model_runner:
        yield (
            "vLLM's V2 model runner decodes, in which no GPU has followed a profile yet, and calibrations measure in "
            "the V1 one; VLLM_USE_V2_MODEL_RUNNER=0 chooses that"
        )
    spec, length = config.speculative_config, profile.followed.draft_length
    if spec.num_speculative_tokens != length:
        yield (
            f"num_speculative_tokens is {spec.num_speculative_tokens} instead of the profile's {length}: its "
            "certificate does not apply"
        )
    if profile.engine is not None:
        yield from _other_arguments(config, profile, profile.engine)
    cached = _recorded(profile.engine, "kv_cache_dtype", "auto")
    for whose, kept in (("target", config.cache_config.cache_dtype), ("draft", spec.kv_cache_dtype)):
        usual = (None, "auto", profile.dtype) if cached == "auto" or whose == "draft" else ()
        if kept not in (*usual, cached):
            yield f"the {whose}'s KV cache is in {kept}, which the profile was not calibrated with"
    kind = config.device_config.device_type
    if kind != profile.device.partition(":")[0]:
        yield f"the profile was calibrated on {profile.device}, decoding runs on {kind}"


def _other_arguments(config: Any, profile: ThresholdProfile, then: EngineInfo) -> Iterator[str]:
    """Yields how an engine differs from vLLM as it was when it certified the profile, in what texts may depend on."""
    from vllm.version import __version__ as running

    if running != then.version:
        yield f"the profile was certified in vllm {then.version}, and this is {running}"
    parallel, quantised = config.parallel_config.tensor_parallel_size, config.model_config.quantization
    of_checkpoint = None if profile.target.quantization is None else quantised
    if parallel != (recorded := _recorded(then, "tensor_parallel_size", 1)):
        yield f"tensor_parallel_size is {parallel}, and the profile was certified with {recorded}"
    recorded = _recorded(then, "quantization", of_checkpoint)
    if (quantised is None) != (recorded is None):  # of one scheme vLLM has several names
        yield f"quantization is {quantised}, and the profile was certified with {recorded}"
    if others := sorted(then.arguments.keys() - _COMPARED - {METHOD}):
        yield f"the profile was certified with {', '.join(others)} in --engine-args, which are not compared"


def _recorded(then: EngineInfo | None, name: str, usual: Any) -> Any:
    """An argument of the engine that certified the profile."""
    return usual if then is None else then.arguments.get(name, usual)


def sampling_fault(config: Any) -> str | None:
    """Returns why sampled requests cannot be decoded speculatively on this engine's device; None: they can.

    vLLM 0.32 expands temperatures for drafted tokens by a function that, on a CPU, leaves them uninitialised. Its texts
    are rubbish then, with or without this plugin.
    """
    if config.device_config.device_type != "cpu" or expands_correctly():
        return None
    return (
        "this vLLM samples wrongly in speculative decoding on a CPU (its temperatures are uninitialised), with fsd or "
        "without; decode greedily (temperature 0), or on a GPU"
    )


def expands_correctly() -> bool:
    """Whether temperatures arrive at drafted tokens."""
    from vllm.platforms import current_platform
    from vllm.v1.sample import rejection_sampler

    current_platform.register_triton_kernel_overrides()
    expanded = rejection_sampler.expand_batch_to_tokens(
        torch.tensor([0.625, 0.75]), torch.tensor([2, 3], dtype=torch.int32), 3
    )
    return expanded.tolist() == [0.625, 0.625, 0.75]
