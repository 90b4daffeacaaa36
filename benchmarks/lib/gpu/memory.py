"""The memory that rounds take, beside what a calibration's plan says."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import torch

from fsd_decoding.memory import LOADED, ModelSize, Workload, need
from lib.gpu.decoding import Imposed, timed
from lib.gpu.models import large, random_prompts
from lib.gpu.plan import Plan
from lib.gpu.rounds import CALLED, CHANCE, large_decoder


def memory(plan: Plan) -> Iterator[dict[str, Any]]:
    """Yields the peak of memory while rounds are decoded, beyond that of loaded models, and what the plan says of it,
    in bytes; the peak is None on a CPU, where PyTorch does not know it."""
    target, draft = (ModelSize.of(large(shape, plan.device), None) for shape in (plan.target, plan.draft))
    context, rows, new = plan.contexts[0], plan.rows[-1], plan.rounds * (plan.draft_length + 1)
    longest = context + new + plan.draft_length + 1
    prompts = random_prompts(plan.target, context, rows)
    timed(large_decoder(plan, False).rounds(prompts[:1], new, plan.draft_length, Imposed(CHANCE)), 1)
    for called, compile in CALLED.items():
        work = Workload(longest, context, plan.draft_length, True, graphs=bool(compile))
        planned = need(target, [draft], work, rows, plan.device)
        for name in LOADED:
            del planned[name]
        before = _begin(plan.device)
        timed(large_decoder(plan, compile).rounds(prompts, new, plan.draft_length, Imposed(CHANCE)), plan.rounds)
        yield {
            "called": called, "rows": rows, "context": context, "planned": planned,
            "planned_bytes": sum(planned.values()), **_peak(plan.device, before),
        }  # fmt: skip


def _begin(device: str) -> int:
    """Frees what earlier rounds have left, and returns the bytes that stay allocated: those of loaded models."""
    gc.collect()
    if device != "cuda":
        return 0
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def _peak(device: str, before: int) -> dict[str, int | None]:
    if device != "cuda":
        return {"peak_bytes": None, "reserved_bytes": None}
    return {
        "peak_bytes": torch.cuda.max_memory_allocated() - before,
        "reserved_bytes": torch.cuda.max_memory_reserved() - before,
    }
