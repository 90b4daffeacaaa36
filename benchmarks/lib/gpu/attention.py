"""Attention over a cache as rounds ask for it: how far from exact it is, and how long it takes.

Knows shapes of queries and caches. Knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from fsd_decoding.models.attention import grouped_attention
from lib.gpu.kernels import milliseconds

_SEED = 11


def attended(
    heads: int, groups: int, size: int, draft_lengths: Sequence[int], rows: Sequence[int], slots: int, device: str
) -> Iterator[dict[str, Any]]:
    """Queries of L + 1 positions behind texts of all lengths, in bf16: the largest error of ours and of transformers'
    own `sdpa`, which repeats keys and values, against fp64; and milliseconds of both."""
    for length in draft_lengths:
        for batch in rows:
            given = _given(batch, heads, groups, length + 1, size, slots, device)
            exact = _repeated(groups, *(one[:1].double().cpu() for one in given))  # one row says what rounding does
            ways: dict[str, Callable[..., Tensor]] = {"ours": _grouped, "repeated": partial(_repeated, groups)}
            yield {
                "rows": batch, "queries": length + 1, "slots": slots, "heads": heads, "groups": groups,
                "errors": {name: _off(way(*given), exact) for name, way in ways.items()},
                "milliseconds": {name: milliseconds(partial(way, *given), 20, device) for name, way in ways.items()},
            }  # fmt: skip


def _off(found: Tensor, exact: Tensor) -> float:
    return float((found[:1].cpu().double() - exact).abs().max())


def _given(
    rows: int, heads: int, groups: int, queries: int, size: int, slots: int, device: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, keys, values and the additive mask, of standard normal numbers; laid out as a `SlotCache` gives them."""
    random = torch.Generator().manual_seed(_SEED)
    shapes = (rows, queries, heads, size), *[(rows, slots, heads // groups, size)] * 2
    made = (torch.randn(shape, generator=random).to(device, torch.bfloat16).transpose(1, 2) for shape in shapes)
    last = torch.linspace(queries, slots, rows).long() - 1
    own = last[:, None] - queries + 1 + torch.arange(queries)  # (rows, queries)
    hidden = torch.arange(slots) > own[:, None, :, None]
    mask = torch.zeros(hidden.shape, dtype=torch.bfloat16).masked_fill(hidden, torch.finfo(torch.bfloat16).min)
    query, key, value = made
    return query, key, value, mask.to(device)


def _grouped(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    return grouped_attention(None, query, key, value, mask)[0]


def _repeated(groups: int, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    module = SimpleNamespace(num_key_value_groups=groups, is_causal=False)
    return sdpa_attention_forward(module, query, key, value, mask)[0]  # type: ignore[arg-type]
