"""The call of transformers' `generate` that `fsd_generate` runs in: its arguments, and who made it.

Up to transformers 5.24 `_extract_generation_mode_kwargs` drops `streamer`, `assistant_model`, `synced_gpus` and
`tokenizer` if `custom_generate` is a callable. The first three remain in the frame of `generate`, and this is the only
way to them; `tokenizer` is lost.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import FrameType
from typing import Any

from transformers import GenerationMixin

_GENERATE = inspect.unwrap(GenerationMixin.generate).__code__
_LIBRARIES = ("fsd_decoding", "transformers", "torch")


def argument_of_generate(name: str) -> Any:
    """Returns the argument `name` of the `generate` that called `fsd_generate`; None if it was called otherwise."""
    frames = _outwards(inspect.currentframe())
    return next((frame.f_locals.get(name) for frame in frames if frame.f_code is _GENERATE), None)


def level_of_user() -> int:
    """Returns the `stacklevel` with which a warning, in the function that calls this, names the user's line.

    It is counted, because the number of decorators around `generate` depends on the version of transformers.
    """
    packages = (frame.f_globals.get("__name__", "").partition(".")[0] for frame in _outwards(inspect.currentframe()))
    return next((level for level, package in enumerate(packages) if package not in _LIBRARIES), 1)


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """Yields a frame, its caller's, and so on."""
    while frame is not None:
        yield frame
        frame = frame.f_back
