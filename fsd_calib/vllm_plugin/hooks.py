"""The versions of vLLM that the plugin supports, and the names in it that the plugin relies on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from importlib import import_module
from typing import Final

from packaging.specifiers import SpecifierSet

from fsd_decoding.errors import UsageError

SUPPORTED: Final = ">=0.32,<0.33"

_COMMON: Mapping[str, Sequence[str]] = {
    "vllm.engine.arg_utils": ["EngineArgs.create_engine_config"],
    "vllm.exceptions": ["VLLMValidationError"],
    "vllm.v1.engine.input_processor": ["InputProcessor._validate_params"],
    "vllm.sampling_params": ["SamplingParams.all_stop_token_ids"],
    "vllm.tokenizers": ["cached_tokenizer_from_config"],
    "vllm.v1.worker.cpu_worker": ["CPUWorker"],
    "vllm.v1.worker.gpu_worker": [
        "Worker.load_model", "Worker.execute_model", "Worker.sample_tokens", "Worker.shutdown", "Worker.reload_weights",
    ],
}  # fmt: skip
RUNNER_V1: Mapping[str, Sequence[str]] = {
    "vllm.v1.sample.rejection_sampler": [
        "RejectionSampler.forward", "RejectionSampler.apply_logits_processors", "expand_batch_to_tokens",
    ],
    "vllm.v1.spec_decode.llm_base_proposer": [
        "SpecDecodeBaseProposer._sample_draft_tokens", "SpecDecodeBaseProposer._sample_from_logits",
        "SpecDecodeBaseProposer.propose", "SpecDecodeBaseProposer._greedy_sample",
    ],
    "vllm.v1.spec_decode.draft_model": ["DraftModelProposer"],
    "vllm.v1.spec_decode.eagle": ["EagleProposer"],
    "vllm.v1.spec_decode.metadata": ["SpecDecodeMetadata"],
    "vllm.v1.worker.gpu_model_runner": [
        "GPUModelRunner.sample_tokens", "GPUModelRunner._sample", "GPUModelRunner._get_positions",
        "ExecuteModelState.logits",
        "ExecuteModelState.spec_decode_metadata",
    ],
}  # fmt: skip


RUNNER_V2: Mapping[str, Sequence[str]] = {
    "vllm.v1.worker.gpu.model_runner": ["GPUModelRunner.sample", "GPUModelRunner.sample_tokens"],
    "vllm.v1.worker.gpu.sample.sampler": ["Sampler.apply_sampling_params"],
    "vllm.v1.worker.gpu.spec_decode.rejection_sampler": ["RejectionSampler.__call__", "RejectionSampler._verify"],
    "vllm.v1.worker.gpu.spec_decode.speculator": ["DraftModelSpeculator.draft_logits_spec"],
    "vllm.v1.worker.gpu.states": ["RequestState"],
    "vllm.v1.worker.gpu.structured_outputs": ["StructuredOutputsWorker.apply_grammar_bitmask"],
}


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


def _exists(module: str, name: str) -> bool:
    try:
        reduce(getattr, name.split("."), import_module(module))
    except (ImportError, AttributeError):
        return False
    return True
