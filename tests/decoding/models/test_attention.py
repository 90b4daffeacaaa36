"""Grouped attention, compared with attention over repeated keys and values, in fp64 and in half precision."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from fsd_decoding.models.forward import grouped_attention

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SLOTS, SIZE = 96, 32
TOLERANCES = {
    torch.float64: 1e-12,
    torch.float32: 2e-6,
    torch.bfloat16: 2.0**-6,  # values of about 3 and weights, both with 8 bits
    torch.float16: 2.0**-9,
}


def inputs(rows: int, heads: int, groups: int, queries: int, window: int | None = None) -> list[Tensor]:
    """Queries, keys and values in the memory layout of a `SlotCache`, and a mask of ragged rows, in fp64."""
    random = torch.Generator().manual_seed(rows * heads + queries)
    query = torch.randn(rows, queries, heads, SIZE, generator=random, dtype=torch.float64).transpose(1, 2)
    key, value = torch.randn(2, rows, SLOTS, heads // groups, SIZE, generator=random, dtype=torch.float64).transpose(
        2, 3
    )
    last = torch.linspace(queries, SLOTS, rows).long() - 1
    own = (last[:, None] - queries + 1 + torch.arange(queries))[:, None, :, None]
    slot = torch.arange(SLOTS)
    hidden = slot > own if window is None else (slot > own) | (slot <= own - window)
    return [query, key, value, torch.zeros(hidden.shape, dtype=torch.float64).masked_fill(hidden, -1e4)]


def repeated_attention(groups: int, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    module = SimpleNamespace(num_key_value_groups=groups, is_causal=False)
    return sdpa_attention_forward(module, query, key, value, mask)[0]  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize("queries", [1, 2, 9])
@pytest.mark.parametrize(("heads", "groups"), [(4, 1), (8, 4), (6, 6)])
def test_equals_attention_with_repeated_keys(
    heads: int, groups: int, queries: int, window: int | None, dtype: torch.dtype
) -> None:
    exact = inputs(5, heads, groups, queries, window)
    query, key, value, mask = (one.to(DEVICE, dtype) for one in exact)
    actual, nothing = grouped_attention(None, query, key, value, mask)
    assert nothing is None
    expected = repeated_attention(groups, *(one.to(dtype).double() for one in exact))
    assert actual.dtype == dtype
    assert actual.shape == expected.shape
    assert (actual.cpu().double() - expected).abs().max() <= TOLERANCES[dtype]


@pytest.mark.parametrize("queries", [1, 2, 9])
@pytest.mark.parametrize(("heads", "groups"), [(4, 1), (8, 4), (6, 6)])
def test_a_mask_of_its_own_per_head(heads: int, groups: int, queries: int) -> None:
    query, key, value, mask = inputs(5, heads, groups, queries)
    each = mask + torch.randn(5, heads, queries, SLOTS, generator=torch.Generator().manual_seed(heads)).double()
    actual, _ = grouped_attention(None, query, key, value, each)
    assert (actual - repeated_attention(groups, query, key, value, each)).abs().max() <= TOLERANCES[torch.float64]
