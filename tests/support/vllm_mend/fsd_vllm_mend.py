"""A mend of vLLM 0.32 on CPUs, where its expansion of temperatures to drafted tokens leaves them uninitialised.

Processes of vLLM that have this folder in PYTHONPATH load it as a plugin of its own.
"""

from __future__ import annotations

from typing import Any

import torch


def expand(x: Any, cu_num_tokens: Any, num_tokens: int, replace_from: int = 0, replace_to: int = 0) -> Any:
    """Does what `expand_batch_to_tokens` of vLLM's rejection sampler is for: (B,) -> (num_tokens,)."""
    replaced = torch.where(x == replace_from, torch.as_tensor(replace_to, dtype=x.dtype), x)
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    return replaced.repeat_interleave(counts, output_size=num_tokens)


def register() -> None:
    """Puts it in the place of vLLM's own, which must be wrong: else the mend is needed no more."""
    from vllm.v1.sample import rejection_sampler

    from fsd_calib.vllm_plugin.engine_checks import expands_correctly

    if rejection_sampler.expand_batch_to_tokens is not expand:
        assert not expands_correctly(), "this vLLM needs no mend: remove tests/support/vllm_mend"
        rejection_sampler.expand_batch_to_tokens = expand
