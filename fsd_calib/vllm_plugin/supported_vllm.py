"""The versions of vLLM that the plugin supports, and the names in it that the plugin relies on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from importlib import import_module
from typing import Final

from packaging.specifiers import SpecifierSet

from fsd_common.errors import UsageError

SUPPORTED: Final = ">=0.32,<0.33"

_COMMON: Mapping[str, Sequence[str]] = {
    "vllm.config": [
        "ModelConfig.enable_prompt_embeds", "ModelConfig.get_vocab_size", "ModelConfig.hf_config_path",
        "ModelConfig.hf_overrides", "ModelConfig.logprobs_mode",
        "ModelConfig.max_model_len", "ModelConfig.quantization", "ModelConfig.revision",
        "ModelConfig.trust_remote_code", "ModelConfig.try_get_generation_config", "ModelConfig.uses_mrope",
        "ParallelConfig.data_parallel_index",
        "ParallelConfig.data_parallel_size", "ParallelConfig.enable_batch_sharded_sampling",
        "ParallelConfig.pipeline_parallel_size", "ParallelConfig.prefill_context_parallel_size", "ParallelConfig.rank",
        "ParallelConfig.tensor_parallel_size", "ParallelConfig.worker_cls", "ParallelConfig.world_size",
        "SchedulerConfig.max_num_seqs", "SpeculativeConfig.draft_load_config", "SpeculativeConfig.draft_model_config",
        "SpeculativeConfig.draft_sample_method", "SpeculativeConfig.enable_adaptive_verification",
        "SpeculativeConfig.kv_cache_dtype", "SpeculativeConfig.method", "SpeculativeConfig.num_speculative_tokens",
        "SpeculativeConfig.num_speculative_tokens_per_batch_size", "SpeculativeConfig.parallel_drafting",
        "SpeculativeConfig.rejection_sample_method", "SpeculativeConfig.target_model_config",
        "SpeculativeConfig.use_gemma4_mtp", "SpeculativeConfig.use_heterogeneous_vocab",
        "SpeculativeConfig.use_local_argmax_reduction", "SpeculativeConfig.use_step3p5_mtp",
        "VllmConfig.additional_config", "VllmConfig.lora_config", "VllmConfig.use_v2_model_runner",
        "VllmConfig.weight_transfer_config",
    ],
    "vllm.engine.arg_utils": ["EngineArgs.create_engine_config"],
    "vllm.exceptions": ["VLLMValidationError"],
    "vllm.v1.engine.input_processor": ["InputProcessor._validate_params"],
    "vllm.platforms": ["current_platform.register_triton_kernel_overrides"],
    "vllm.sampling_params": [
        "SamplingParams.all_stop_token_ids", "SamplingParams.allowed_token_ids", "SamplingParams.bad_words",
        "SamplingParams.extra_args", "SamplingParams.frequency_penalty", "SamplingParams.ignore_eos",
        "SamplingParams.logit_bias", "SamplingParams.max_tokens", "SamplingParams.min_p", "SamplingParams.min_tokens",
        "SamplingParams.presence_penalty", "SamplingParams.repetition_penalty", "SamplingParams.stop",
        "SamplingParams.stop_token_ids", "SamplingParams.structured_outputs", "SamplingParams.temperature",
        "SamplingParams.thinking_token_budget", "SamplingParams.top_k", "SamplingParams.top_p",
    ],
    "vllm.tokenizers": ["cached_tokenizer_from_config"],
    "vllm.v1.core.sched.output": [
        "CachedRequestData.all_token_ids", "NewRequestData.prefill_token_ids",
        "NewRequestData.prompt_embeds", "NewRequestData.prompt_token_ids", "NewRequestData.req_id",
        "NewRequestData.sampling_params", "SchedulerOutput.finished_req_ids", "SchedulerOutput.scheduled_cached_reqs",
        "SchedulerOutput.scheduled_new_reqs",
    ],
    "vllm.v1.worker.cpu_worker": ["CPUWorker"],
    "vllm.v1.worker.gpu_worker": [
        "Worker.load_model", "Worker.execute_model", "Worker.sample_tokens", "Worker.shutdown", "Worker.reload_weights",
        "Worker.sleep",
    ],
}  # fmt: skip
RUNNER_V1: Mapping[str, Sequence[str]] = {
    "vllm.v1.outputs": ["SamplerOutput.sampled_token_ids"],
    "vllm.v1.sample.metadata": ["SamplingMetadata.all_greedy", "SamplingMetadata.generators"],
    "vllm.v1.sample.rejection_sampler": [
        "RejectionSampler.forward", "RejectionSampler.apply_logits_processors", "apply_sampling_constraints",
        "expand_batch_to_tokens", "generate_uniform_probs",
    ],
    "vllm.v1.spec_decode.llm_base_proposer": [
        "SpecDecodeBaseProposer._sample_draft_tokens", "SpecDecodeBaseProposer._sample_from_logits",
        "SpecDecodeBaseProposer.propose", "SpecDecodeBaseProposer._greedy_sample",
    ],
    "vllm.v1.spec_decode.draft_model": ["DraftModelProposer"],
    "vllm.v1.spec_decode.eagle": ["EagleProposer"],
    "vllm.v1.spec_decode.metadata": [
        "SpecDecodeMetadata.cu_num_draft_tokens", "SpecDecodeMetadata.draft_token_ids",
        "SpecDecodeMetadata.logits_indices",
        "SpecDecodeMetadata.num_draft_tokens", "SpecDecodeMetadata.target_logits_indices",
    ],
    "vllm.v1.worker.gpu_input_batch": [
        "CachedRequestState.prompt_embeds", "CachedRequestState.prompt_token_ids",
        "CachedRequestState.sampling_params",
    ],
    "vllm.v1.worker.gpu_model_runner": [
        "GPUModelRunner.sample_tokens", "GPUModelRunner._sample", "GPUModelRunner._get_positions",
        "ExecuteModelState.logits",
        "ExecuteModelState.spec_decode_metadata",
    ],
}  # fmt: skip


CALIBRATION: Mapping[str, Sequence[str]] = {
    **RUNNER_V1,
    "vllm.entrypoints.llm": ["LLM"],
    "vllm.outputs": ["RequestOutput"],
    "vllm.v1.engine.llm_engine": [
        "LLMEngine.abort_request", "LLMEngine.add_request", "LLMEngine.collective_rpc", "LLMEngine.step",
    ],
    "vllm.v1.outputs": ["SamplerOutput.sampled_token_ids", "DraftTokenIds.req_ids"],
    "vllm.v1.core.sched.output": [
        *_COMMON["vllm.v1.core.sched.output"], "SchedulerOutput.num_spec_tokens_to_schedule",
    ],
    "vllm.v1.worker.gpu_worker": [*_COMMON["vllm.v1.worker.gpu_worker"], "Worker.take_draft_token_ids"],
    "vllm.v1.worker.gpu_model_runner": [
        *RUNNER_V1["vllm.v1.worker.gpu_model_runner"], "GPUModelRunner._input_fits_in_drafter",
    ],
}  # fmt: skip
"""What a calibration needs beside."""

RUNNER_V2: Mapping[str, Sequence[str]] = {
    "vllm.v1.worker.gpu.input_batch": [
        "InputBatch.cu_num_logits_np", "InputBatch.idx_mapping_np", "InputBatch.input_ids", "InputBatch.logits_indices",
        "InputBatch.num_draft_tokens", "InputBatch.positions", "InputBatch.req_ids", "InputBatch.seq_lens",
    ],
    "vllm.v1.worker.gpu.sample.output": ["SamplerOutput.num_sampled", "SamplerOutput.sampled_token_ids"],
    "vllm.v1.worker.gpu.model_runner": ["GPUModelRunner.sample", "GPUModelRunner.sample_tokens"],
    "vllm.v1.worker.gpu.sample.sampler": ["Sampler.apply_sampling_params"],
    "vllm.v1.worker.gpu.spec_decode.rejection_sampler": ["RejectionSampler.__call__", "RejectionSampler._verify"],
    "vllm.v1.worker.gpu.spec_decode.speculator": ["DraftModelSpeculator.draft_logits_spec"],
    "vllm.v1.worker.gpu.states": ["RequestState"],
    "vllm.v1.worker.gpu.structured_outputs": ["StructuredOutputsWorker.apply_grammar_bitmask"],
}  # fmt: skip

OF_RUNNER_V1: Sequence[str] = [
    "device", "discard_request_mask.np", "drafter._enable_probabilistic_draft_probs",
    "drafter.model.compute_logits", "execute_model_state",
    "input_batch.num_prompt_tokens", "input_batch.req_ids", "rejection_sampler", "requests", "sampler", "seq_lens",
    "speculative_config", "vllm_config",
]  # fmt: skip
"""What the plugin uses of a loaded V1 runner, which only an instance has."""

OF_RUNNER_V2: Sequence[str] = [
    "device", "rejection_sampler", "req_states.prompt_len.np", "req_states.req_id_to_index", "speculator",
    "structured_outputs_worker", "vllm_config", "vocab_size",
]  # fmt: skip
"""What it uses of a loaded V2 runner."""


def check_vllm(version: str, runner: Mapping[str, Sequence[str]] = RUNNER_V1) -> None:
    """Checks the version of vLLM and that it has all names that the plugin replaces or calls.

    Raises:
        UsageError: it is none of the supported ones, or a name is missing; nothing was changed.
    """
    if not SpecifierSet(SUPPORTED).contains(version, prereleases=True):
        raise UsageError(
            f"vLLM is version {version}; fsd profiles are followed in versions {SUPPORTED}: install one of these, or "
            "another fsd-calib"
        )
    missing = [f"{module}.{name}" for module, names in {**_COMMON, **runner}.items() for name in names
               if not _exists(module, name)]  # fmt: skip
    if missing:
        raise UsageError(
            f"vLLM {version} has no {missing[0]}, which following a profile needs; install another vLLM {SUPPORTED}"
        )


def check_runner(runner: object, names: Sequence[str] = OF_RUNNER_V1) -> None:
    """Checks that a loaded model runner has what the plugin uses of it.

    Raises:
        UsageError: it lacks an attribute.
    """
    for name in names:
        if not _has(runner, name):
            raise UsageError(
                f"vLLM's {type(runner).__name__} has no {name}, which following a profile needs; install another vLLM "
                f"{SUPPORTED}"
            )


def _exists(module: str, name: str) -> bool:
    try:
        return _has(import_module(module), name)
    except ImportError:
        return False


def _has(owner: object, name: str) -> bool:
    """Whether an object has an attribute, or is a dataclass with a field of that name, with dots between names."""
    *path, last = name.split(".")
    try:
        holder = reduce(getattr, path, owner)
    except AttributeError:
        return False
    return hasattr(holder, last) or last in getattr(holder, "__dataclass_fields__", ())
