"""Attention for grouped queries over a cache, without a repeated copy of keys and values.

Knows transformers' attention interface and PyTorch's scaled dot product. Knows nothing of caches or masks
beyond their shapes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

NAME = "fsd_grouped"


def grouped_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """What transformers' `sdpa` computes, with the G queries that share a key head folded into the query axis.

    query (B, G·K, Q, D), key and value (B, K, S, D) -> (B, Q, G·K, D). transformers repeats keys and values G
    times where there is a mask, which copies the cache at every layer. `attention_mask` is additive and
    already repeated for the group: (B, 1, G·Q, S), see `fold`.
    """
    rows, heads, queries, size = query.shape
    folded = query.reshape(rows, key.shape[1], -1, size)
    out = scaled_dot_product_attention(folded, key, value, attn_mask=attention_mask, scale=scaling)
    return out.reshape(rows, heads, queries, -1).transpose(1, 2).contiguous(), None


def fold(mask: Tensor, groups: int) -> Tensor:
    """(B, 1, Q, S) -> (B, 1, G·Q, S)."""
    return mask if groups == 1 else mask.repeat(1, 1, groups, 1)


AttentionInterface.register(NAME, grouped_attention)


@contextmanager
def grouped(config: Any) -> Iterator[None]:
    """Within, a model of `config` that was loaded with `sdpa` attends by `grouped_attention`.

    Only for the length of a forward: the model is its owner's.
    """
    loaded = config._attn_implementation_internal
    config._attn_implementation_internal = NAME
    try:
        yield
    finally:
        config._attn_implementation_internal = loaded
