"""Grouped attention against the one that repeats keys and values, in fp64 and in the types models run in."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from fsd_decoding.models.attention import grouped_attention

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SLOTS, SIZE = 96, 32
TOLERANCES = {
    torch.float64: 1e-12,
    torch.float32: 2e-6,
    torch.bfloat16: 2.0**-6,  # values of some 3 with 8 bits, and weights with as many
    torch.float16: 2.0**-9,
}


def given(rows: int, heads: int, groups: int, queries: int, window: int | None = None) -> list[Tensor]:
    """Queries, keys, values, laid out as a `SlotCache` gives them, and a mask that shows every row as far as its own
    length; in fp64."""
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


def repeated(groups: int, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    module = SimpleNamespace(num_key_value_groups=groups, is_causal=False)
    return sdpa_attention_forward(module, query, key, value, mask)[0]  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize("queries", [1, 2, 9])
@pytest.mark.parametrize(("heads", "groups"), [(4, 1), (8, 4), (6, 6)])
def test_it_is_attention_with_repeated_keys(
    heads: int, groups: int, queries: int, window: int | None, dtype: torch.dtype
) -> None:
    exact = given(5, heads, groups, queries, window)
    query, key, value, mask = (one.to(DEVICE, dtype) for one in exact)
    found, nothing = grouped_attention(None, query, key, value, mask)
    assert nothing is None
    expected = repeated(groups, *(one.to(dtype).double() for one in exact))
    assert found.dtype == dtype
    assert found.shape == expected.shape
    assert (found.cpu().double() - expected).abs().max() <= TOLERANCES[dtype]
