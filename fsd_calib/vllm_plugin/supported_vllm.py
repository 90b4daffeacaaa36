"""The versions of vLLM that the plugin supports, and the names in it that the plugin relies on.

A name may be written with the parameters that the plugin counts on, without `self`: all of them, or the first, if "..."
follows. What is declared here is looked up when an engine starts, and tests read it in the sources of every supported
version, of which some have no build that a CPU could run.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from importlib import import_module
from typing import Any, Final, NamedTuple

from packaging.specifiers import SpecifierSet

from fsd_common.errors import UsageError

SUPPORTED: Final = ">=0.32,<0.34"
MINORS: Final = ("0.32", "0.33")
"""Those in it."""

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
    "vllm.engine.arg_utils": ["EngineArgs.create_engine_config(usage_context, ...)"],
    "vllm.exceptions": ["VLLMValidationError"],
    "vllm.v1.engine.input_processor": ["InputProcessor._validate_params(params, ...)"],
    "vllm.platforms.interface": ["Platform.register_triton_kernel_overrides()"],
    "vllm.sampling_params": [
        "SamplingParams.all_stop_token_ids", "SamplingParams.allowed_token_ids", "SamplingParams.bad_words",
        "SamplingParams.extra_args", "SamplingParams.frequency_penalty", "SamplingParams.ignore_eos",
        "SamplingParams.logit_bias", "SamplingParams.max_tokens", "SamplingParams.min_p", "SamplingParams.min_tokens",
        "SamplingParams.presence_penalty", "SamplingParams.repetition_penalty", "SamplingParams.stop",
        "SamplingParams.stop_token_ids", "SamplingParams.structured_outputs", "SamplingParams.temperature",
        "SamplingParams.thinking_token_budget", "SamplingParams.top_k", "SamplingParams.top_p",
    ],
    "vllm.tokenizers": ["cached_tokenizer_from_config(model_config, ...)"],
    "vllm.v1.core.sched.output": [
        "CachedRequestData.all_token_ids", "NewRequestData.prefill_token_ids",
        "NewRequestData.prompt_embeds", "NewRequestData.prompt_token_ids", "NewRequestData.req_id",
        "NewRequestData.sampling_params", "SchedulerOutput.finished_req_ids", "SchedulerOutput.scheduled_cached_reqs",
        "SchedulerOutput.scheduled_new_reqs",
    ],
    "vllm.v1.worker.cpu_worker": ["CPUWorker"],
    "vllm.v1.worker.gpu_worker": [
        "Worker.load_model", "Worker.execute_model(scheduler_output)", "Worker.sample_tokens(grammar_output)",
        "Worker.compile_or_warm_up_model()", "Worker.shutdown()", "Worker.reload_weights", "Worker.sleep(level)",
    ],
}  # fmt: skip
RUNNER_V1: Mapping[str, Sequence[str]] = {
    "vllm.v1.outputs": ["SamplerOutput.logprobs_tensors", "SamplerOutput.sampled_token_ids"],
    "vllm.v1.sample.metadata": [
        "SamplingMetadata.all_greedy", "SamplingMetadata.generators", "SamplingMetadata.logprob_token_ids",
        "SamplingMetadata.max_num_logprobs",
    ],
    "vllm.v1.sample.rejection_sampler": [
        "RejectionSampler.__init__(sampler, spec_config, device)",
        "RejectionSampler.forward(metadata, draft_probs, logits, sampling_metadata)",
        "RejectionSampler.apply_logits_processors(logits, sampling_metadata, metadata)",
        "apply_sampling_constraints(logits, cu_num_draft_tokens, sampling_metadata)",
        "expand_batch_to_tokens(x, cu_num_tokens, num_tokens, ...)",
        "generate_uniform_probs(num_tokens, num_draft_tokens, generators, device)",
    ],
    "vllm.v1.spec_decode.llm_base_proposer": [
        "SpecDecodeBaseProposer._sample_draft_tokens(hidden_states, sampling_metadata)",
        "SpecDecodeBaseProposer._sample_from_logits(logits, sampling_metadata)",
        "SpecDecodeBaseProposer.propose", "SpecDecodeBaseProposer._greedy_sample(hidden_states)",
    ],
    "vllm.v1.spec_decode.draft_model": ["DraftModelProposer"],
    "vllm.v1.spec_decode.eagle": ["EagleProposer"],
    "vllm.v1.spec_decode.metadata": [
        "SpecDecodeMetadata.bonus_logits_indices", "SpecDecodeMetadata.cu_num_draft_tokens",
        "SpecDecodeMetadata.draft_token_ids",
        "SpecDecodeMetadata.logits_indices",
        "SpecDecodeMetadata.num_draft_tokens", "SpecDecodeMetadata.target_logits_indices",
    ],
    "vllm.v1.worker.gpu_input_batch": [
        "CachedRequestState.prompt_embeds", "CachedRequestState.prompt_token_ids",
        "CachedRequestState.sampling_params",
    ],
    "vllm.v1.worker.gpu_model_runner": [
        "GPUModelRunner.sample_tokens(grammar_output)", "GPUModelRunner._sample(logits, spec_decode_metadata)",
        "GPUModelRunner._get_positions(num_tokens)", "ExecuteModelState.logits",
        "ExecuteModelState.spec_decode_metadata",
    ],
}  # fmt: skip


CALIBRATION: Mapping[str, Sequence[str]] = {
    **RUNNER_V1,
    "vllm.entrypoints.llm": ["LLM"],
    "vllm.outputs": ["RequestOutput"],
    "vllm.v1.engine.llm_engine": [
        "LLMEngine.abort_request(request_ids, ...)", "LLMEngine.add_request(request_id, prompt, params, ...)",
        "LLMEngine.collective_rpc(method, timeout, args, ...)", "LLMEngine.step()",
    ],
    "vllm.v1.outputs": ["SamplerOutput.sampled_token_ids", "DraftTokenIds.req_ids"],
    "vllm.v1.core.sched.output": [
        *_COMMON["vllm.v1.core.sched.output"], "SchedulerOutput.num_spec_tokens_to_schedule",
    ],
    "vllm.v1.worker.gpu_worker": [*_COMMON["vllm.v1.worker.gpu_worker"], "Worker.take_draft_token_ids()"],
    "vllm.v1.worker.gpu_model_runner": [
        *RUNNER_V1["vllm.v1.worker.gpu_model_runner"], "GPUModelRunner._input_fits_in_drafter(common_attn_metadata)",
    ],
}  # fmt: skip
"""What a calibration needs beside."""

RUNNER_V2: Mapping[str, Sequence[str]] = {
    "vllm.v1.worker.gpu.input_batch": [
        "InputBatch.cu_num_logits_np", "InputBatch.idx_mapping_np", "InputBatch.input_ids", "InputBatch.logits_indices",
        "InputBatch.num_draft_tokens", "InputBatch.positions", "InputBatch.req_ids", "InputBatch.seq_lens",
    ],
    "vllm.v1.worker.gpu.sample.output": ["SamplerOutput.num_sampled", "SamplerOutput.sampled_token_ids"],
    "vllm.v1.worker.gpu.model_runner": [
        "ExecuteModelState.input_batch", "ExecuteModelState.num_spec_tokens_to_schedule",
        "GPUModelRunner.sample(hidden_states, input_batch, grammar_output)",
        "GPUModelRunner.sample_tokens(grammar_output)",
    ],
    "vllm.v1.worker.gpu.sample.sampler": ["Sampler.apply_sampling_params(logits, ...)"],
    "vllm.v1.worker.gpu.spec_decode.rejection_sampler": [
        "RejectionSampler.__call__(logits, input_batch, draft_logits, invalid_drafts)",
        "RejectionSampler._verify(logits, draft_logits, draft_sampled, pos, cu_num_logits, idx_mapping, "
        "idx_mapping_np, expanded_idx_mapping, expanded_local_pos, seq_lens_upper_bound_np, verify_draft_sampled)",
    ],
    "vllm.v1.worker.gpu.spec_decode.speculator": ["DraftModelSpeculator.draft_logits_spec"],
    "vllm.v1.worker.gpu.states": ["RequestState"],
    "vllm.v1.worker.gpu.structured_outputs": [
        "StructuredOutputsWorker.apply_grammar_bitmask(logits, input_batch, ...)",
    ],
}  # fmt: skip

AUDIT: Mapping[str, Sequence[str]] = {
    "vllm.config": [*_COMMON["vllm.config"], "SchedulerConfig.async_scheduling", "SchedulerConfig.scheduler_cls"],
    "vllm.sampling_params": [*_COMMON["vllm.sampling_params"], "SamplingParams.clone()"],
    "vllm.v1.core.sched.async_scheduler": ["AsyncScheduler"],
    "vllm.v1.core.sched.interface": ["PauseState.UNPAUSED"],
    "vllm.v1.core.sched.scheduler": [
        "Scheduler.add_request(request)", "Scheduler.finish_requests(request_ids, finished_status)",
        "Scheduler.has_requests()", "Scheduler.pause_state",
        "Scheduler.update_from_output(scheduler_output, model_runner_output)",
    ],
    "vllm.v1.engine": ["EngineCoreOutput.finish_reason", "EngineCoreOutput.request_id", "EngineCoreOutputs.outputs"],
    "vllm.v1.request": [
        "Request.__init__(request_id, prompt_token_ids, sampling_params, pooling_params, client_index, ...)",
        "Request.is_finished()", "Request.use_structured_output", "RequestStatus.FINISHED_ABORTED",
    ],
}  # fmt: skip
"""What audits need."""

PROCESSOR: Mapping[str, Sequence[str]] = {
    **RUNNER_V2,
    "vllm.config": [*_COMMON["vllm.config"], "ModelConfig.logits_processors"],
    "vllm.v1.worker.gpu.sample.logits_processor.interface": [
        "LogitsContext.expanded_idx_mapping", "LogitsContext.expanded_local_pos", "LogitsContext.idx_mapping_np",
        "LogitsContext.input_ids", "LogitsContext.pos", "LogitsProcRequestState.device",
        "LogitsProcRequestState.max_num_reqs", "LogitsProcRequestState.prompt_len",
        "LogitsProcessor.__init__(vllm_config, req_states)", "LogitsProcessor.add_request(req_idx, sampling_params)",
        "LogitsProcessor.apply(logits, ctx)", "LogitsProcessor.apply_staged_writes()",
        "LogitsProcessor.validate_params(sampling_params)",
    ],
}  # fmt: skip
"""What scores of the target alone need in V2."""

_V1, _V2 = "vllm.v1.worker.gpu_model_runner.GPUModelRunner", "vllm.v1.worker.gpu.model_runner.GPUModelRunner"
_PROPOSER = "vllm.v1.spec_decode.llm_base_proposer.SpecDecodeBaseProposer"

OF_RUNNER_V1: Mapping[str, str] = {
    **dict.fromkeys(
        ["device", "discard_request_mask", "drafter", "execute_model_state", "input_batch", "rejection_sampler",
         "requests", "sampler", "seq_lens", "speculative_config", "vllm_config"], _V1,
    ),
    **dict.fromkeys(
        ["drafter._enable_probabilistic_draft_probs", "drafter.model", "drafter.num_speculative_tokens",
         "drafter.parallel_drafting"], _PROPOSER,
    ),
    "discard_request_mask.np": "vllm.v1.utils.CpuGpuBuffer",
    "drafter.model.compute_logits": "vllm.model_executor.models.interfaces_base.VllmModelForTextGeneration",
    **dict.fromkeys(
        ["input_batch.num_prompt_tokens", "input_batch.req_ids"], "vllm.v1.worker.gpu_input_batch.InputBatch"
    ),
}  # fmt: skip
"""What the plugin uses of a loaded V1 runner, which only an instance has, and the class whose attribute each is."""

OF_RUNNER_V2: Mapping[str, str] = {
    **dict.fromkeys(
        ["device", "execute_model_state", "rejection_sampler", "req_states", "speculator", "structured_outputs_worker",
         "vllm_config", "vocab_size"], _V2,
    ),
    **dict.fromkeys(["req_states.prompt_len", "req_states.req_id_to_index"], "vllm.v1.worker.gpu.states.RequestState"),
    "req_states.prompt_len.np": "vllm.v1.worker.gpu.buffer_utils.UvaBackedTensor",
}  # fmt: skip
"""What it uses of a loaded V2 runner."""

DECLARED: Sequence[Mapping[str, Sequence[str]]] = (_COMMON, RUNNER_V1, CALIBRATION, RUNNER_V2, PROCESSOR, AUDIT)
"""All names, by module."""


class Hook(NamedTuple):
    """A name in a module, as declared above."""

    path: str  # dots between names
    parameters: tuple[str, ...] | None  # None: the plugin counts on none
    open: bool  # whether others may follow

    @classmethod
    def of(cls, written: str) -> Hook:
        """Returns the name that is written."""
        path, bracket, listed = written.removesuffix(")").partition("(")
        names = [name for name in listed.split(", ") if name]
        return cls(path, tuple(name for name in names if name != "...") if bracket else None, "..." in names)

    def takes(self, parameters: Sequence[str]) -> bool:
        """Whether a function of these parameters is what the plugin counts on."""
        if self.parameters is None:
            return True
        given = [name for name in parameters if name not in ("self", "cls")]
        return tuple(given[: len(self.parameters)] if self.open else given) == self.parameters


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
    for module, names in {**_COMMON, **runner}.items():
        for hook in map(Hook.of, names):
            if fault := _fault(module, hook):
                raise UsageError(
                    f"vLLM {version} has no {module}.{fault}, which following a profile needs; install another vLLM "
                    f"{SUPPORTED}"
                )


def check_runner(runner: object, names: Iterable[str] = OF_RUNNER_V1) -> None:
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


def _fault(module: str, hook: Hook) -> str | None:
    """Returns what a module lacks of a name, as a message names it; None: it has it."""
    try:
        owner = import_module(module)
    except ImportError:
        return hook.path
    if not _has(owner, hook.path):
        return hook.path
    if hook.parameters is None or hook.takes(list(inspect.signature(_attribute(owner, hook.path)).parameters)):
        return None
    return f"{hook.path}({', '.join([*hook.parameters, *['...'] * hook.open])})"


def _attribute(owner: object, path: str) -> Any:
    return reduce(getattr, path.split("."), owner)


def _has(owner: object, path: str) -> bool:
    """Whether an object has an attribute, or is a dataclass with a field of that name, with dots between names."""
    above, _, last = path.rpartition(".")
    try:
        holder = _attribute(owner, above) if above else owner
    except AttributeError:
        return False
    return hasattr(holder, last) or last in getattr(holder, "__dataclass_fields__", ())
