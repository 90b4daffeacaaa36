"""The threshold profile: the JSON file that a calibration writes and decoders load."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsd_common.lazy_exports import lazy_exports

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
