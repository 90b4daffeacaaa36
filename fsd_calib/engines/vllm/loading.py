"""Starting vLLM for a calibration: versions, arguments, and the plugin in its measuring mode."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from fsd_calib.engines.base import Pair
from fsd_calib.engines.vllm.arguments import EngineArguments
from fsd_calib.vllm_plugin import KEY, plugin
from fsd_calib.vllm_plugin.measured_setting import CALIBRATION, MeasuredSetting
from fsd_common.errors import UsageError

_CPU_CACHE = 1 << 30  # bytes of KV cache on a CPU, where vLLM would take most of the memory
_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine's loop runs in this process, and ends with it
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # no GPU has tested the plugin in the other one
}
_alive: list[Any] = []  # an engine that is deleted takes what all engines of a process share with it


@dataclass(frozen=True)
class Room:
    """What an engine has room for.

    Attributes:
        rows: Requests at once.
        longest: Drafted tokens of a round.
        context: Tokens of a prompt and its text together.
    """

    rows: int
    longest: int
    context: int


def load(pair: Pair, dtype: str, arguments: EngineArguments, first: MeasuredSetting, room: Room) -> Any:
    """Returns a `vllm.LLM` that measures settings of a calibration.

    Args:
        first: The first setting, whose sampling all have.

    Raises:
        UsageError: vLLM cannot run these models so, or has no room for what is decoded.
    """
    os.environ.update(_ENVIRONMENT)
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    arguments.check_room(room.rows, room.context)
    try:
        from vllm.entrypoints.llm import LLM
        from vllm.platforms import current_platform
    except ImportError as error:
        raise UsageError(f"vLLM is installed, and cannot be imported here: {error}; install it anew") from error
    plugin.register()  # vLLM loads it by itself only where VLLM_PLUGINS allows it
    sampled = first.sampling.temperature > 0
    speculation = {"model": pair.draft.id, "num_speculative_tokens": room.longest, "method": "draft_model"}
    on_cpu = {"enforce_eager": True, "kv_cache_memory_bytes": _CPU_CACHE} if current_platform.is_cpu() else {}
    usual = {
        "dtype": dtype, "max_model_len": room.context, "max_num_seqs": room.rows, "generation_config": "vllm",
        "disable_log_stats": True, **on_cpu,
    }  # fmt: skip
    ours = {
        "speculative_config": speculation | ({"draft_sample_method": "probabilistic"} if sampled else {}),
        "additional_config": {KEY: {CALIBRATION: first.model_dump_json()}},
        "async_scheduling": False, "enable_prefix_caching": False,
    }  # fmt: skip
    try:
        llm = LLM(pair.target.id, **{**usual, **arguments.values, **ours})
    except UsageError:
        raise
    except Exception as error:  # vLLM and what it builds on raise whatever they raise
        raise UsageError(f"vLLM could not start with {pair.target.id!r}: {_last_line(error)}") from error
    _alive.append(llm)
    return llm


def versions() -> dict[str, str]:
    """Returns the versions that vLLM's texts depend on."""
    from vllm.version import __version__ as vllm_version

    return {"vllm": vllm_version, "torch": version("torch"), "transformers": version("transformers")}


def _last_line(error: BaseException) -> str:
    """The innermost cause in one line: vLLM wraps what its workers raise."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
