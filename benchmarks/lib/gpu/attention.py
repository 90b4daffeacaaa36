"""PyTorch's kernels of attention, on the engine's layout of the KV cache: their errors, and what a new shape costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from fsd_decoding.models.forward import grouped_attention
from lib.gpu.clock import each_milliseconds
from lib.gpu.models import SHAPES
from lib.gpu.plan import Plan

_QUERIES = (1, 2, 5)  # a draft step, the first one of a round, and a verification
_SEED, _CALLS = 11, 10


def attention(plan: Plan) -> Iterator[dict[str, Any]]:
    """Yields, by shape and kernel, the largest error against fp64, and milliseconds of the first and the tenth call.

    "any" is the kernel that PyTorch chooses. Texts of a batch end at all slots up to the last.
    """
    heads, groups, size = _heads(plan.target)
    for slots, rows, queries in product(plan.attended, plan.rows, _QUERIES):
        inputs = _inputs(rows, heads, groups, queries, size, slots, plan.device)
        exact = _attended([tensor[:1].double() for tensor in inputs])  # one row shows the rounding
        for backend in ("any", *plan.backends):
            where = {"slots": slots, "rows": rows, "queries": queries, "groups": groups, "backend": backend}
            yield where | _measured(backend, inputs, exact, plan.device)


def _measured(backend: str, inputs: Sequence[Tensor], exact: Tensor, device: str) -> dict[str, Any]:
    """A row's numbers; "refused" and nothing else where the kernel does not take these inputs."""
    chosen = nullcontext() if backend == "any" else sdpa_kernel([getattr(SDPBackend, backend)])
    with chosen:
        try:
            times = each_milliseconds(lambda: _attended(inputs), _CALLS, device)
            error = (_attended(inputs)[:1].double() - exact).abs().max()
        except RuntimeError as refusal:
            return {"refused": str(refusal).splitlines()[0]}
    return {"error": float(error), "first_milliseconds": times[0], "tenth_milliseconds": times[-1]}


def _attended(inputs: Sequence[Tensor]) -> Tensor:
    query, key, value, mask = inputs
    return grouped_attention(None, query, key, value, mask)[0]


def _heads(shape: str) -> tuple[int, int, int]:
    """Heads of a layer, how many of them share a key, and their size."""
    config = SHAPES[shape]
    heads = config["num_attention_heads"]
    return heads, heads // config["num_key_value_heads"], config["hidden_size"] // heads


def _inputs(
    rows: int, heads: int, groups: int, queries: int, size: int, slots: int, device: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Standard normal queries, keys and values in bf16, laid out like those of a `SlotCache`, and the additive mask."""
    random = torch.Generator().manual_seed(_SEED)
    shapes = (rows, queries, heads, size), *[(rows, slots, heads // groups, size)] * 2
    query, key, value = (
        torch.randn(shape, generator=random).to(device, torch.bfloat16).transpose(1, 2) for shape in shapes
    )
    last = torch.linspace(slots, queries, rows).long() - 1
    own = last[:, None] - queries + 1 + torch.arange(queries)  # (rows, queries)
    hidden = torch.arange(slots) > own[:, None, :, None]
    mask = torch.zeros(hidden.shape, dtype=torch.bfloat16).masked_fill(hidden, torch.finfo(torch.bfloat16).min)
    return query, key, value, mask.to(device)
