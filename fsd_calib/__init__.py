"""Calibrates Fuzzy Speculative Decoding: the fastest threshold that keeps the accuracy you asked for.

What users need is here by name; each name is imported when it is first asked for, because models,
search and tables take seconds to import.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fsd_calib.calibration import calibrate
    from fsd_calib.tasks import load_task
    from fsd_decoding.decoder import SpeculativeDecoder
    from fsd_decoding.hf import fsd_generate
    from fsd_decoding.ngram import NGram
    from fsd_decoding.profile import ThresholdProfile
    from fsd_decoding.recording import Recorder

__all__ = ["NGram", "Recorder", "SpeculativeDecoder", "ThresholdProfile", "calibrate", "fsd_generate", "load_task"]

_HOMES = {
    "NGram": "fsd_decoding.ngram",
    "Recorder": "fsd_decoding.recording",
    "SpeculativeDecoder": "fsd_decoding.decoder",
    "ThresholdProfile": "fsd_decoding.profile",
    "calibrate": "fsd_calib.calibration",
    "fsd_generate": "fsd_decoding.hf",
    "load_task": "fsd_calib.tasks",
}


def __getattr__(name: str) -> object:
    """PEP 562: called for a name that is not here yet."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = found
    return found
