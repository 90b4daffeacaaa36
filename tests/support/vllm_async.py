"""vLLM's asynchronous scheduling, which is its default on GPUs and which it turns off on CPUs without a word.

Only tests in tests/vllm import this file: it needs vLLM.
"""

from __future__ import annotations

from typing import Any

import pytest
from vllm.entrypoints.llm import LLM
from vllm.platforms.cpu import CpuPlatform

from support.vllm_engine import engine


def async_engine(followed: str | None = None, settings: dict[str, Any] | None = None, **keywords: Any) -> LLM:
    """An engine as `engine` makes it, whose scheduler runs a step ahead of its worker also on a CPU."""
    turns_off = CpuPlatform.check_and_update_config

    def leaves_on(_: type, config: Any) -> None:
        turns_off(config)
        config.scheduler_config.async_scheduling = True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CpuPlatform, "check_and_update_config", classmethod(leaves_on))
        llm = engine(followed, settings, **keywords)
    core: Any = llm.llm_engine.engine_core
    assert core.engine_core.batch_queue is not None
    return llm
