"""Errors and milliseconds of attention over a KV cache, at the query lengths of rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from fsd_decoding.models.forward import grouped_attention
from lib.gpu.kernels import milliseconds

_SEED = 11


def measure_attention(
    heads: int, groups: int, size: int, draft_lengths: Sequence[int], rows: Sequence[int], slots: int, device: str
) -> Iterator[dict[str, Any]]:
    """Yields errors against fp64 and milliseconds of our attention and of transformers' `sdpa`, in bf16.

    Queries have L + 1 positions, after texts of all lengths. `sdpa` ("repeated") repeats keys and values for every
    head of a group.
    """
    for length in draft_lengths:
        for batch in rows:
            inputs = _inputs(batch, heads, groups, length + 1, size, slots, device)
            exact = _repeated(groups, *(tensor[:1].double().cpu() for tensor in inputs))  # one row shows the rounding
            ways: dict[str, Callable[..., Tensor]] = {"ours": _grouped, "repeated": partial(_repeated, groups)}
            yield {
                "rows": batch, "queries": length + 1, "slots": slots, "heads": heads, "groups": groups,
                "errors": {name: _error(way(*inputs), exact) for name, way in ways.items()},
                "milliseconds": {name: milliseconds(partial(way, *inputs), 20, device) for name, way in ways.items()},
            }  # fmt: skip


def _error(computed: Tensor, exact: Tensor) -> float:
    return float((computed[:1].cpu().double() - exact).abs().max())


def _inputs(
    rows: int, heads: int, groups: int, queries: int, size: int, slots: int, device: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns standard normal queries, keys and values, laid out like those of a `SlotCache`, and the additive mask."""
    random = torch.Generator().manual_seed(_SEED)
    shapes = (rows, queries, heads, size), *[(rows, slots, heads // groups, size)] * 2
    query, key, value = (
        torch.randn(shape, generator=random).to(device, torch.bfloat16).transpose(1, 2) for shape in shapes
    )
    last = torch.linspace(queries, slots, rows).long() - 1
    own = last[:, None] - queries + 1 + torch.arange(queries)  # (rows, queries)
    hidden = torch.arange(slots) > own[:, None, :, None]
    mask = torch.zeros(hidden.shape, dtype=torch.bfloat16).masked_fill(hidden, torch.finfo(torch.bfloat16).min)
    return query, key, value, mask.to(device)


def _grouped(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    return grouped_attention(None, query, key, value, mask)[0]


def _repeated(groups: int, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    module = SimpleNamespace(num_key_value_groups=groups, is_causal=False)
    return sdpa_attention_forward(module, query, key, value, mask)[0]  # type: ignore[arg-type]
