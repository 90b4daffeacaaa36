"""Calibrates Fuzzy Speculative Decoding: the fastest threshold that keeps the accuracy you asked for.

What users need is here by name; each name is imported when it is first asked for, because models,
search and tables take seconds to import.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fsd_calib import adaptive
    from fsd_calib.calibration import calibrate
    from fsd_calib.tasks import load_task
    from fsd_calib.watching.telemetry import Telemetry
    from fsd_collectors.collecting.run import collect_traces
    from fsd_collectors.replay import CostModel, replay, sweep
    from fsd_collectors.store.reading import load_traces
    from fsd_decoding.decoder import SpeculativeDecoder
    from fsd_decoding.hf import fsd_generate
    from fsd_decoding.ngram import NGram
    from fsd_decoding.observing import together
    from fsd_decoding.profile import ThresholdProfile
    from fsd_decoding.recording import Recorder

__all__ = [
    "CostModel",
    "NGram",
    "Recorder",
    "SpeculativeDecoder",
    "Telemetry",
    "ThresholdProfile",
    "adaptive",
    "calibrate",
    "collect_traces",
    "fsd_generate",
    "load_task",
    "load_traces",
    "replay",
    "sweep",
    "together",
]

_HOMES = {
    "CostModel": "fsd_collectors.replay",
    "NGram": "fsd_decoding.ngram",
    "Recorder": "fsd_decoding.recording",
    "SpeculativeDecoder": "fsd_decoding.decoder",
    "Telemetry": "fsd_calib.watching.telemetry",
    "ThresholdProfile": "fsd_decoding.profile",
    "calibrate": "fsd_calib.calibration",
    "collect_traces": "fsd_collectors.collecting.run",
    "fsd_generate": "fsd_decoding.hf",
    "load_task": "fsd_calib.tasks",
    "load_traces": "fsd_collectors.store.reading",
    "replay": "fsd_collectors.replay",
    "sweep": "fsd_collectors.replay",
    "together": "fsd_decoding.observing",
}
_MODULES = {"adaptive"}


def __getattr__(name: str) -> object:
    """PEP 562: called for a name that is not here yet."""
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = found
    return found
