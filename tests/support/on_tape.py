"""Decoders whose rounds are captured on a simulated device, and the caches that they return to their pools."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.engine import kv_pool
from fsd_decoding.graphs.capture import Captured
from support.tiny_pair import ragged_prompts

NEW = 40
PROMPTS = ragged_prompts(9)


def again(decoder: SpeculativeDecoder, draft: Any = None) -> SpeculativeDecoder:
    return SpeculativeDecoder(decoder.target, draft or decoder.draft, decoder.tokenizer, compile="capture")


def graphs(decoder: SpeculativeDecoder) -> int:
    """Number of steps captured in the unused caches of the decoder's pool."""
    return sum(len(caches.call) for caches in free(decoder) if isinstance(caches.call, Captured))


def free(decoder: SpeculativeDecoder) -> list[kv_pool.PooledCaches]:
    return [caches for some in decoder._pool._free.values() for caches in some]


def same(ours: SpeculativeDecoder, theirs: SpeculativeDecoder, temperature: float = 0.0, **how: Any) -> None:
    """Checks that both decode alike; intervals may differ in rounding, because only an eager batch shrinks."""
    settings: dict[str, Any] = {"threshold": 0.2, "draft_length": 3, "batch_size": 4} | how
    for a, b in zip(*(d.generate(PROMPTS, NEW, temperature, **settings) for d in (ours, theirs)), strict=True):
        assert replace(a, interval=(0.0, 0.0)) == replace(b, interval=(0.0, 0.0))
        assert a.interval == pytest.approx(b.interval, rel=1e-9)
