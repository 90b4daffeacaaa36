"""Whether vLLM's rejection sampler samples correctly on this CPU: version 0.32 does not."""

from __future__ import annotations

from typing import Any

import torch


def fault(config: Any) -> str | None:
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
