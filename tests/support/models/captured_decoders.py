"""Decoders whose rounds are captured as graphs, and checks of the caches and graphs that they hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.engine import cache_pool
from fsd_decoding.graphs.capture import CapturingCaller
from support.models.tiny_pair import ragged_prompts

NEW = 40
PROMPTS = ragged_prompts(9)


def captured_copy(decoder: SpeculativeDecoder, draft: Any = None) -> SpeculativeDecoder:
    """Returns a decoder of the same models, or with another draft, that captures its rounds."""
    return SpeculativeDecoder(decoder.target, draft or decoder.draft, decoder.tokenizer, compile="capture")


def count_graphs(decoder: SpeculativeDecoder) -> int:
    """Returns how many steps were captured in the decoder's free caches."""
    return sum(len(caches.call) for caches in free_caches(decoder) if isinstance(caches.call, CapturingCaller))


def free_caches(decoder: SpeculativeDecoder) -> list[cache_pool.PooledCaches]:
    """Returns the caches in the decoder's pool that no call is using."""
    return [caches for some in decoder._pool._free.values() for caches in some]


def assert_same_results(
    ours: SpeculativeDecoder, theirs: SpeculativeDecoder, temperature: float = 0.0, **settings: Any
) -> None:
    """Checks that both decoders return the same results.

    Intervals may differ by rounding: a batch shrinks without graphs and keeps its size with them.
    """
    settings = {"threshold": 0.2, "draft_length": 3, "batch_size": 4} | settings
    for a, b in zip(*(d.generate(PROMPTS, NEW, temperature, **settings) for d in (ours, theirs)), strict=True):
        assert replace(a, interval=(0.0, 0.0)) == replace(b, interval=(0.0, 0.0))
        assert a.interval == pytest.approx(b.interval, rel=1e-9)
