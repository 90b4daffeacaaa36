"""Decoders that follow a written-down profile, each with a drift of its own. Knows how one is built."""

from __future__ import annotations

import itertools
from typing import Any

from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from support.profiles import profile
from support.tiny import word_tokenizer

_seconds = itertools.count()


def own_profile(changes: dict[str, Any]) -> ThresholdProfile:
    """Made when no other was, so that what follows it shares its drift with none."""
    return profile(changes | {"created": f"2026-01-01T00:00:{next(_seconds):02}Z"})


def following(pair: tuple[Any, Any], changes: dict[str, Any]) -> SpeculativeDecoder:
    return SpeculativeDecoder.from_pretrained(*pair, own_profile(changes), tokenizer=word_tokenizer())
