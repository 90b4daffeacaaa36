"""Grouped-query attention over a cache, without repeating keys and values."""

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
    """Computes transformers' `sdpa` attention with the G queries that share a key head folded into the query axis.

    With a mask, transformers repeats keys and values G times instead, which copies the cache in every layer. Repeating
    the mask is far cheaper. Some models (Doge) have a mask per head, which is folded like the queries.

    Args:
        module, dropout, kwargs: as in transformers' attention interface.
        query: (B, G·K, Q, D).
        key, value: (B, K, S, D).
        attention_mask: (B, 1, Q, S) or (B, G·K, Q, S) additive.
        scaling: factor of the scores; None is 1/√D.

    Returns:
        (B, Q, G·K, D), and None in place of attention weights.
    """
    if attention_mask is None or attention_mask.dtype == torch.bool or dropout:
        # Not called by `ModelRunner`, but by another thread that uses the model meanwhile.
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **kwargs)
    mask = fold_mask(attention_mask, query.shape[1] // key.shape[1])
    return attend(query, key, value, mask, scaling).transpose(1, 2).contiguous(), None


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float | None) -> Tensor:
    """Computes grouped attention (B, G·K, Q, D) of the same arguments, the mask being folded by `fold_mask`."""
    rows, heads, queries, size = query.shape
    folded = query.reshape(rows, key.shape[1], -1, size)  # (B, K, G·Q, D)
    return scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=scaling).reshape(
        rows, heads, queries, -1
    )


def fold_mask(mask: Tensor, groups: int) -> Tensor:
    """Returns the mask of queries with `groups` heads folded into their axis; a single query broadcasts."""
    rows, heads, queries, slots = mask.shape
    if heads > 1:
        return mask.reshape(rows, -1, groups * queries, slots)
    return mask if groups == 1 or queries == 1 else mask.repeat(1, 1, groups, 1)


AttentionInterface.register(NAME, grouped_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)  # for calls without a mask of their own


def attention_kind(model: Any) -> str:
    """Returns the kind of attention that a model was loaded with: "sdpa", which is replaced here, "eager", …"""
    kind: str = model.config.get_text_config()._attn_implementation
    return "sdpa" if kind == NAME else kind  # another thread is inside `use_grouped_attention`


@contextmanager
def use_grouped_attention(config: Any) -> Iterator[None]:
    """Inside, a model of this config that was loaded with `sdpa` uses `grouped_attention`.

    Enter it for single forward passes only, because the model belongs to the caller. Other threads may use the model or
    enter this context meanwhile.
    """
    config._attn_implementation_internal = NAME
    try:
        yield
    finally:
        config._attn_implementation_internal = "sdpa"
