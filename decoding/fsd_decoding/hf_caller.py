"""What transformers' `generate` was given but does not hand on to a callable it runs.

Knows where `generate` keeps its arguments. Up to 5.23 `_extract_generation_mode_kwargs` throws away, without a
word, `streamer`, `assistant_model`, `synced_gpus` and `tokenizer` when `custom_generate` is a callable. The
first three are still in the frame of `generate`, and there is no other way to them; `tokenizer` is lost.
"""

from __future__ import annotations

import inspect
from typing import Any

from transformers import GenerationMixin

_GENERATE = inspect.unwrap(GenerationMixin.generate).__code__


def argument_of_generate(name: str) -> Any:
    """What the `generate` that called us was given as `name`; None where we were called otherwise."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not _GENERATE:
        frame = frame.f_back
    return None if frame is None else frame.f_locals.get(name)
