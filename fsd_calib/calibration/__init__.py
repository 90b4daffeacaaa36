"""One calibration, step by step: from a task, two models and a goal to a threshold profile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsd_common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from fsd_calib.calibration.api import calibrate

__all__ = [
    "calibrate",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "calibrate": "fsd_calib.calibration.api",
    },
)
