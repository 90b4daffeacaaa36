"""The threshold profile: what was measured, chosen and certified, as one JSON file that decoders follow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsd_decoding.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from fsd_decoding.profile.threshold_profile import ThresholdProfile

__all__ = [
    "ThresholdProfile",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "ThresholdProfile": "fsd_decoding.profile.threshold_profile",
    },
)
