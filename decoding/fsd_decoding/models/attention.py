"""Attention for grouped queries over a cache, without a repeated copy of keys and values.

Knows transformers' attention interface and PyTorch's scaled dot product. Knows nothing of caches or masks
beyond their shapes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "fsd_grouped"


def grouped_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """What transformers' `sdpa` computes, with the G queries that share a key head folded into the query axis.

    query (B, G·K, Q, D), key and value (B, K, S, D), `attention_mask` (B, 1, Q, S) additive -> (B, Q, G·K, D).
    Where there is a mask transformers repeats keys and values G times instead, which copies the cache at every
    layer; the mask is smaller by far.
    """
    if attention_mask is None or attention_mask.dtype == torch.bool or dropout:
        # Not our runner: another thread calls the model while a round of ours is under way.
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **kwargs)
    rows, heads, queries, size = query.shape
    groups = heads // key.shape[1]
    folded = query.reshape(rows, -1, groups * queries, size)
    mask = attention_mask if groups == 1 or queries == 1 else attention_mask.repeat(1, 1, groups, 1)
    out = scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=scaling)
    return out.reshape(rows, heads, queries, -1).transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, grouped_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)  # for calls that bring no mask of their own


@contextmanager
def grouped(config: Any) -> Iterator[None]:
    """Within, a model of `config` that was loaded with `sdpa` attends by `grouped_attention`.

    Only for the length of a forward: the model is its owner's. Another thread may come and go within it.
    """
    config._attn_implementation_internal = NAME
    try:
        yield
    finally:
        config._attn_implementation_internal = "sdpa"
