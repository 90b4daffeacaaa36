"""Fuzzy speculative decoding inside transformers' `generate`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsd_decoding.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from fsd_decoding.hf.generate import fsd_generate

__all__ = [
    "fsd_generate",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "fsd_generate": "fsd_decoding.hf.generate",
    },
)
