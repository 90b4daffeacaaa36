"""A tiny pair, a profile of it, ways to follow that, and the warnings that this brings."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import torch

from fsd_decoding.adaptive import EntropyScaled
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.hf import fsd_generate
from fsd_decoding.models.fingerprint import tokenizer_fingerprint
from fsd_decoding.profile.parts import ModelInfo, PolicyInfo
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from support.calibration.profiles import profile
from support.models.tiny_models import word_tokenizer
from support.models.tiny_pair import ragged_prompts, related

PAIR = related(seed=1, spread=0.05)
PROMPTS = ragged_prompts(3)
NEW = 8
DOES_NOT_APPLY = "the certificate of the profile of 'arithmetic' does not apply"
MOVING = {"policy": PolicyInfo.of(str(EntropyScaled(0.0625, 1.0).identity)).model_dump()}


def followed(changes: dict[str, Any] | None = None) -> ThresholdProfile:
    return profile({
        "prompt": None,
        "target": ModelInfo.of(PAIR[0]).model_dump(), "draft": ModelInfo.of(PAIR[1]).model_dump(),
        "tokenizer": tokenizer_fingerprint(word_tokenizer()), "dtype": "float64", "acceptance": None,
        "threshold": 0.0625, "draft_length": 3, "sampling.temperature": 0.8, **(changes or {}),
    })  # fmt: skip


def load(changes: dict[str, Any] | None = None, **given: Any) -> SpeculativeDecoder:
    return SpeculativeDecoder.from_pretrained(*PAIR, followed(changes), tokenizer=word_tokenizer(), **given)


def by_transformers(changes: dict[str, Any] | None = None, **given: Any) -> None:
    PAIR[0].generate(
        torch.tensor([PROMPTS[0]]), max_new_tokens=NEW, custom_generate=fsd_generate, draft_model=PAIR[1],
        fsd_profile=followed(changes), do_sample=True, **{"temperature": 0.8, "top_k": 0} | given,
    )  # fmt: skip


def warned(run: Any, **given: Any) -> list[str]:
    """The warnings of a call, all of which name the file of the test that called, or this one for `by_transformers`."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(**given)
    assert {warning.filename for warning in caught} <= {sys._getframe(1).f_code.co_filename, __file__}
    return [str(warning.message) for warning in caught]
