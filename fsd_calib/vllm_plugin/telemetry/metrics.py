"""The plugin's metrics beside vLLM's own, for Prometheus."""

from __future__ import annotations

import functools
import multiprocessing
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector

from fsd_calib.vllm_plugin.telemetry.counters import read_counters
from fsd_decoding.profile.drift import expected_range
from fsd_decoding.profile.threshold_profile import ThresholdProfile

PATTERN = "engine-{}.counters"
"""Name of the file of an engine's counters, by its index among data-parallel engines."""


_MARK = "_shows_fsd"
_FOLDER = "FSD_CALIB_VLLM_COUNTERS"  # environment: the folder of the process that started this one

_exported: list[Metrics] = []
_folders: list[tempfile.TemporaryDirectory[str]] = []  # removed when this process ends


def export_counters(profile: ThresholdProfile) -> str:
    """Adds counters to this process's metrics, in place of those of an earlier engine, and returns their folder.

    Several API servers of one engine configure it once each, in processes that one parent starts with multiprocessing.
    It is the parent's folder that the workers write to, so the others take over that. A server that another program
    starts inherits the variable as well, but not the engine.
    """
    folder = os.environ.get(_FOLDER)
    if not folder or multiprocessing.parent_process() is None:
        _folders.append(tempfile.TemporaryDirectory(prefix="fsd-counters-"))
        folder = os.environ[_FOLDER] = _folders[-1].name
    for earlier in _exported:
        REGISTRY.unregister(earlier)
    _exported[:] = [Metrics(Path(folder), profile)]
    REGISTRY.register(_exported[0])
    _show_beside_shared_metrics()
    return folder


def _show_beside_shared_metrics() -> None:
    """Lets /metrics show them where API servers share metrics: each scrape then makes a registry of this collector."""
    shared: Any = MultiProcessCollector.collect
    if hasattr(shared, _MARK):
        return

    @functools.wraps(shared)
    def collect(self: Any) -> Iterator[Any]:
        yield from shared(self)
        yield from _exported[0].collect()

    setattr(collect, _MARK, True)
    MultiProcessCollector.collect = collect  # type: ignore[method-assign]


class Metrics:
    """Reads the counters of all engines on this host whenever metrics are asked for."""

    def __init__(self, folder: Path, profile: ThresholdProfile) -> None:
        self._folder, self._profile = folder, profile

    def describe(self) -> list[Any]:
        """Returns nothing, so that two engines in one process may have the same metrics."""
        return []

    def collect(self) -> Iterator[Any]:
        yield self._info()
        tokens = CounterMetricFamily(
            "fsd:drafted_tokens", "Drafted tokens by what became of them: accepted by the exact rule, accepted only "
            "because D <= T (fuzzy), rejected.", labels=["engine", "outcome"],
        )  # fmt: skip
        mean = GaugeMetricFamily(
            "fsd:accepted_divergence_mean", "Mean D of fuzzily accepted tokens.", labels=["engine"]
        )
        rate = GaugeMetricFamily(
            "fsd:acceptance_rate_mean", "Mean share of drafted tokens accepted, of texts decoded as the profile says.",
            labels=["engine"],
        )  # fmt: skip
        drifted = GaugeMetricFamily(
            "fsd:drifted", "1 once acceptance left the range that the profile expects.", labels=["engine"]
        )
        for file in sorted(self._folder.glob(PATTERN.format("*"))):
            counted, engine = read_counters(file), file.stem.partition("-")[2]
            for outcome in ("exact", "fuzzy", "rejected"):
                tokens.add_metric([engine, outcome], counted[outcome])
            if counted["fuzzy"]:
                mean.add_metric([engine], counted["fuzzy_divergence"] / counted["fuzzy"])
            if counted["texts"]:
                rate.add_metric([engine], counted["accepted_share"] / counted["texts"])
            drifted.add_metric([engine], counted["drifted"])
        yield from (tokens, mean, rate, drifted)
        yield from self._expected()

    def _info(self) -> Any:
        profile = self._profile
        facts = {"task": profile.task, "divergence": profile.divergence, "threshold": str(profile.threshold),
                 "digest": profile.digest or ""}  # fmt: skip
        return InfoMetricFamily("fsd:profile", "The profile that is followed.", value=facts)

    def _expected(self) -> Iterator[Any]:
        if self._profile.acceptance is not None:
            low, high = expected_range(self._profile.acceptance)
            expected = GaugeMetricFamily(
                "fsd:acceptance_rate_expected", "Range of the mean acceptance rate over 200 texts that the profile "
                "expects.", labels=["end"],
            )  # fmt: skip
            expected.add_metric(["low"], max(low, 0.0))
            expected.add_metric(["high"], min(high, 1.0))
            yield expected
