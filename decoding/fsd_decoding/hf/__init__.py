"""Fuzzy speculative decoding behind transformers' own `generate`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsd_common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from fsd_decoding.hf.generate import FsdGenerateOutput, fsd_generate

__all__ = [
    "FsdGenerateOutput",
    "fsd_generate",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "FsdGenerateOutput": "fsd_decoding.hf.generate",
        "fsd_generate": "fsd_decoding.hf.generate",
    },
)
