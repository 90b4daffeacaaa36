"""What a user may set of vLLM's engine, and what the calibration sets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from fsd_common.errors import UsageError

_OURS = {
    "model": "give it as --target",
    "tokenizer": "it is the target's",
    "dtype": "give it as --dtype",
    "speculative_config": "give the draft as --draft and its lengths as --draft-length",
    "additional_config": "the calibration gives its own to the plugin",
    "async_scheduling": "the calibration changes the draft length from step to step, which that would plan ahead",
    "enable_prefix_caching": "it would keep prompts that the draft has not read, where the target decodes alone",
    "data_parallel_size": "--workers starts replicas, each with an engine of its own",
    **dict.fromkeys(
        ("revision", "code_revision", "tokenizer_revision"),
        "the fingerprint is of what --target and --draft name: download that revision and give its folder",
    ),
    "load_format": "the fingerprint is of the checkpoint's own weights",
    "hf_overrides": "the fingerprint is of the checkpoint's own configuration",
    "pipeline_parallel_size": "the plugin needs the drafts of every step at the next one: use tensor_parallel_size",
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
        size = self.values.get("tensor_parallel_size", 1)
        return size if isinstance(size, int) else 1  # vLLM refuses others

    def check_room(self, rows: int, context: int = 0) -> None:
        """Checks that the engine has room for what is decoded.

        Args:
            rows: Requests at once.
            context: Tokens of a prompt and its text together; 0: not known yet.

        Raises:
            UsageError: It has not: texts would be cut, or speeds be those of fewer requests.
        """
        for name, least, what, way_out in (
            ("max_model_len", context, "the longest prompt and its text take", "give at least that"),
            ("max_num_seqs", rows, "up to so many problems are decoded at once:", "use a smaller --batch-size"),
        ):
            given = self.values.get(name)
            if isinstance(given, int) and given < least:
                raise UsageError(f"engine_args sets {name!r} to {given}, and {what} {least}; {way_out}")

    @property
    def decisive(self) -> dict[str, Any]:
        """Those that texts may depend on."""
        return {name: value for name, value in self.values.items() if name not in _NO_TEXTS}
