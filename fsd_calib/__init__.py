"""Calibration of Fuzzy Speculative Decoding: finds the fastest threshold that keeps the requested accuracy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsd_common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from fsd_calib import adaptive
    from fsd_calib.calibration.api import calibrate
    from fsd_calib.calibration.retime import retime
    from fsd_calib.exports.engines import export_profile
    from fsd_calib.options.goal import Goal
    from fsd_calib.options.run_config import RunConfig
    from fsd_calib.options.search_space import SearchSpace
    from fsd_calib.tasks.registry import load_task
    from fsd_calib.telemetry import Telemetry
    from fsd_collectors.collection.rescoring import with_scores
    from fsd_collectors.collection.run import collect_traces
    from fsd_collectors.judging.collect import collect_labels
    from fsd_collectors.judging.labels import read_about, read_labels
    from fsd_collectors.replay.cost import CostModel
    from fsd_collectors.replay.simulation import replay, sweep
    from fsd_collectors.store.reading import load_traces
    from fsd_decoding.config import DecodingConfig
    from fsd_decoding.decoder import SpeculativeDecoder
    from fsd_decoding.drafters.eagle import Eagle
    from fsd_decoding.drafters.named import drafter_named
    from fsd_decoding.drafters.ngram import NGram
    from fsd_decoding.drafters.vllm_draft import VllmDraft
    from fsd_decoding.hf import fsd_generate
    from fsd_decoding.observers.round_log import Recorder
    from fsd_decoding.observers.round_record import together
    from fsd_decoding.observers.token_sources import TokenSources
    from fsd_decoding.profile.threshold_profile import ThresholdProfile
    from fsd_decoding.sampling import Sampling
    from fsd_decoding.tree_shape import TreeShape

__version__ = "0.1.0"

__all__ = [
    "CostModel",
    "DecodingConfig",
    "Eagle",
    "Goal",
    "NGram",
    "Recorder",
    "RunConfig",
    "Sampling",
    "SearchSpace",
    "SpeculativeDecoder",
    "Telemetry",
    "ThresholdProfile",
    "TokenSources",
    "TreeShape",
    "VllmDraft",
    "adaptive",
    "calibrate",
    "collect_labels",
    "collect_traces",
    "drafter_named",
    "export_profile",
    "fsd_generate",
    "load_task",
    "load_traces",
    "read_about",
    "read_labels",
    "replay",
    "retime",
    "sweep",
    "together",
    "with_scores",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "CostModel": "fsd_collectors.replay.cost",
        "DecodingConfig": "fsd_decoding.config",
        "Eagle": "fsd_decoding.drafters.eagle",
        "Goal": "fsd_calib.options.goal",
        "NGram": "fsd_decoding.drafters.ngram",
        "Recorder": "fsd_decoding.observers.round_log",
        "RunConfig": "fsd_calib.options.run_config",
        "Sampling": "fsd_decoding.sampling",
        "SearchSpace": "fsd_calib.options.search_space",
        "SpeculativeDecoder": "fsd_decoding.decoder",
        "Telemetry": "fsd_calib.telemetry",
        "ThresholdProfile": "fsd_decoding.profile.threshold_profile",
        "TokenSources": "fsd_decoding.observers.token_sources",
        "TreeShape": "fsd_decoding.tree_shape",
        "VllmDraft": "fsd_decoding.drafters.vllm_draft",
        "adaptive": "fsd_calib.adaptive",
        "calibrate": "fsd_calib.calibration.api",
        "collect_labels": "fsd_collectors.judging.collect",
        "collect_traces": "fsd_collectors.collection.run",
        "export_profile": "fsd_calib.exports.engines",
        "drafter_named": "fsd_decoding.drafters.named",
        "fsd_generate": "fsd_decoding.hf",
        "load_task": "fsd_calib.tasks.registry",
        "load_traces": "fsd_collectors.store.reading",
        "read_about": "fsd_collectors.judging.labels",
        "read_labels": "fsd_collectors.judging.labels",
        "replay": "fsd_collectors.replay.simulation",
        "retime": "fsd_calib.calibration.retime",
        "sweep": "fsd_collectors.replay.simulation",
        "together": "fsd_decoding.observers.round_record",
        "with_scores": "fsd_collectors.collection.rescoring",
    },
)
