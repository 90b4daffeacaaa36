"""What a user may set of vLLM's engine, and what the calibration sets."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from fsd_decoding.errors import UsageError

_OURS = {
    "model": "give it as --target",
    "tokenizer": "it is the target's",
    "dtype": "give it as --dtype",
    "speculative_config": "give the draft as --draft and its lengths as --draft-length",
    "additional_config": "the calibration gives its own to the plugin",
    "async_scheduling": "the calibration changes the draft length from step to step, which that would plan ahead",
    "enable_prefix_caching": "it would keep prompts that the draft has not read, where the target decodes alone",
    "data_parallel_size": "--workers starts replicas, each with an engine of its own",
    "worker_cls": "the plugin chooses it",
    "distributed_executor_backend": "no calibration has been tested with another than vLLM chooses",
}
_NO_TEXTS = ("gpu_memory_utilization", "kv_cache_memory_bytes", "max_num_seqs", "max_model_len", "disable_log_stats")
# which texts do not depend on: room, and what is printed


@dataclass(frozen=True)
class EngineArguments:
    """Arguments of `vllm.LLM` that a user gives, by name, as canonical JSON.

    Raises:
        UsageError: One is the calibration's own, or is not JSON.
    """

    text: str = field(default="{}")

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Returns the arguments that a user gave."""
        for name, way_out in _OURS.items():
            if name in given:
                raise UsageError(f"engine_args sets {name!r}, which cannot be set: {way_out}")
        try:
            return cls(json.dumps(dict(given), sort_keys=True))
        except (TypeError, ValueError) as error:
            raise UsageError(f"engine_args is {given!r:.80}; it must be a JSON object: {error}") from error

    @property
    def values(self) -> dict[str, Any]:
        values: dict[str, Any] = json.loads(self.text)
        return values

    @property
    def devices(self) -> int:
        """How many devices one engine is spread over."""
        sizes = (self.values.get(name, 1) for name in ("tensor_parallel_size", "pipeline_parallel_size"))
        return math.prod(size if isinstance(size, int) else 1 for size in sizes)  # vLLM refuses others

    @property
    def decisive(self) -> dict[str, Any]:
        """Those that texts may depend on."""
        return {name: value for name, value in self.values.items() if name not in _NO_TEXTS}
