"""What works after a capture that failed."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from fsd_decoding.graphs.callers import EagerCaller, GraphKey, in_graph
from fsd_decoding.graphs.capture import CapturingCaller, CudaGraphs
from lib.gpu.plan import Plan
from lib.gpu.tape import Tape


def failure(plan: Plan) -> Iterator[dict[str, Any]]:
    """Yields what works, in this order: a step whose capture fails, `torch.rand`, the capture of another step."""
    capture = CudaGraphs() if plan.device == "cuda" else Tape()
    call, ones = CapturingCaller(EagerCaller(), capture), torch.ones(2, device=plan.device)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        results = [call(GraphKey("fails", None), _fails, ones).tolist() for _ in range(3)]
    yield {"step": "a step whose capture fails", "works": results == [[2.0, 2.0]] * 3, "warnings": len(told)}
    drawn = torch.rand(1000, device=plan.device)
    yield {"step": "torch.rand", "works": 0.4 < float(drawn.mean()) < 0.6}
    results = [call(GraphKey("works", None), _doubled, ones).tolist() for _ in range(3)]
    yield {"step": "another capture", "works": results == [[2.0, 2.0]] * 3 and len(call) == 1}


def _fails(values: Tensor) -> Tensor:
    """Draws random numbers, and reads a value on the host, in a capture alone, where it cannot."""
    if in_graph():
        torch.rand(2, device=values.device)
        values.tolist()
    return 2 * values


def _doubled(values: Tensor) -> Tensor:
    return 2 * values
