"""Decoders that take their settings from a test profile, each with its own drift statistics."""

from __future__ import annotations

import itertools
from typing import Any

from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from support.calibration.profiles import profile
from support.models.tiny_models import word_tokenizer

_seconds = itertools.count()


def unique_profile(changes: dict[str, Any]) -> ThresholdProfile:
    """Returns a profile with a creation time of its own: decoders share drift statistics by profile."""
    return profile(changes | {"created": f"2026-01-01T00:00:{next(_seconds):02}Z"})


def decoder_with_profile(pair: tuple[Any, Any], changes: dict[str, Any]) -> SpeculativeDecoder:
    return SpeculativeDecoder.from_pretrained(*pair, unique_profile(changes), tokenizer=word_tokenizer())
