"""The plugin's metrics beside vLLM's own, for Prometheus: counters of workers, passed on to vLLM's front end."""

from __future__ import annotations

import functools
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector

from fsd_calib.vllm_plugin import audit
from fsd_calib.vllm_plugin.telemetry.counters import AUDITS, STEPS, Counters, read_counters
from fsd_calib.vllm_plugin.telemetry.steps import Step
from fsd_calib.vllm_plugin.telemetry.texts import ServedText
from fsd_decoding.profile.following import Drift, expected_range
from fsd_decoding.profile.threshold_profile import ThresholdProfile


class Acceptance:
    """Watches texts for drift.

    Args:
        drift: compares windows of texts with the profile.
        counters: receive the texts' rates, and that they drifted.
        warn: called with drift's message.
    """

    def __init__(self, drift: Drift, counters: Counters, warn: Callable[[str], None]) -> None:
        self._drift, self._counters, self._warn = drift, counters, warn

    def finished(self, text: ServedText) -> None:
        if not text.drafted or not text.whole:
            return
        self._counters.increase("texts", 1)
        self._counters.increase("accepted_share", text.accepted / text.drafted)
        if message := self._drift.add(text):
            self._counters.increase("drifted", 1)
            self._warn(message)


NAMES: Final = ("exact", "fuzzy", "rejected", "fuzzy_score", "texts", "accepted_share", "drifted")
"""What is counted: drafted tokens accepted without need of D <= T, by it, and rejected; the sum of D of the second;
texts that were decoded as the profile says, with the sum of their shares of accepted tokens; whether they drifted."""


class StepCounters(Counters):
    """Counts drafted tokens, see `NAMES`.

    Args:
        file: see `Counters`.
    """

    def __init__(self, file: Path) -> None:
        super().__init__(file, NAMES)

    def add(self, step: Step) -> None:
        if step.layout.count:
            needed, kept = step.needed, step.kept.sum()
            fuzzy = needed.sum()
            rejected = step.decided.sum() - kept
            self._values[:4] += (kept - fuzzy, fuzzy, rejected, step.scores[needed].sum())  # as in NAMES

    def finish(self, ids: Iterable[str]) -> None:
        """Counts nothing by request."""


_MARK = "_shows_fsd"
_FOLDER = "FSD_CALIB_VLLM_COUNTERS"  # environment: the folder of the process that started this one

_folders: list[tempfile.TemporaryDirectory[str]] = []  # removed when this process ends


def export_counters(profile: ThresholdProfile) -> str:
    """Adds an engine's counters to this process's metrics, beside those of earlier engines; returns their folder.

    Several API servers of one engine configure it once each, in processes that one parent starts with multiprocessing.
    It is the parent's folder that the workers write to, so the others take over that. A server that another program
    starts inherits the variable as well, but not the engine, and neither do further engines of a process.
    """
    folder = os.environ.get(_FOLDER)
    if not folder or _metrics.engines or multiprocessing.parent_process() is None:
        _folders.append(tempfile.TemporaryDirectory(prefix="fsd-counters-"))
        folder = os.environ[_FOLDER] = _folders[-1].name
    if not _metrics.engines:
        REGISTRY.register(_metrics)
        _show_beside_shared_metrics()
    _metrics.engines.append((Path(folder), profile))
    return folder


def _show_beside_shared_metrics() -> None:
    """Lets /metrics show them where API servers share metrics: each scrape then makes a registry of this collector."""
    shared: Any = MultiProcessCollector.collect
    if hasattr(shared, _MARK):
        return

    @functools.wraps(shared)
    def collect(self: Any) -> Iterator[Any]:
        yield from shared(self)
        yield from _metrics.collect()

    setattr(collect, _MARK, True)
    MultiProcessCollector.collect = collect  # type: ignore[method-assign]


class Metrics:
    """Reads the counters of all engines on this host whenever metrics are asked for.

    Engines that one process configured are told apart by the label `order`; vLLM's own `engine` is 0 for each of them.

    Attributes:
        engines: folder of the counters, and profile, of each engine that this process configured, in order.
    """

    def __init__(self) -> None:
        self.engines: list[tuple[Path, ThresholdProfile]] = []

    def describe(self) -> list[Any]:
        """Returns nothing, as what is shown depends on the engines."""
        return []

    def collect(self) -> Iterator[Any]:
        yield self._info()
        tokens = CounterMetricFamily(
            "fsd:drafted_tokens", "Drafted tokens by what became of them: accepted by the exact rule, accepted only "
            "because D <= T (fuzzy), rejected.", labels=[*_ENGINE, "outcome"],
        )  # fmt: skip
        mean = GaugeMetricFamily("fsd:accepted_score_mean", "Mean D of fuzzily accepted tokens.", labels=_ENGINE)
        rate = GaugeMetricFamily(
            "fsd:acceptance_rate_mean", "Mean share of drafted tokens accepted, of texts decoded as the profile says.",
            labels=_ENGINE,
        )  # fmt: skip
        drifted = GaugeMetricFamily(
            "fsd:drifted", "1 once acceptance left the range that the profile expects.", labels=_ENGINE
        )
        for labels, counted in self._counted(STEPS, NAMES):
            for outcome in ("exact", "fuzzy", "rejected"):
                tokens.add_metric([*labels, outcome], counted[outcome])
            if counted["fuzzy"]:
                mean.add_metric(labels, counted["fuzzy_score"] / counted["fuzzy"])
            if counted["texts"]:
                rate.add_metric(labels, counted["accepted_share"] / counted["texts"])
            drifted.add_metric(labels, counted["drifted"])
        yield from (tokens, mean, rate, drifted, self._expected(), *self._audits())

    def _counted(self, pattern: str, names: Sequence[str]) -> Iterator[tuple[list[str], dict[str, float]]]:
        """Yields the labels of each engine, and the numbers in its file of a pattern."""
        for order, (folder, _) in enumerate(self.engines):
            for file in sorted(folder.glob(pattern.format("*"))):
                yield [str(order), file.stem.partition("-")[2]], read_counters(file, names)

    def _audits(self) -> Iterator[Any]:
        texts = CounterMetricFamily(
            "fsd:audited_texts", "Served texts that were decoded losslessly once more: the same, changed or sampled; "
            "and those dropped, as too many waited.",
            labels=[*_ENGINE, "text"],
        )  # fmt: skip
        tokens = CounterMetricFamily(
            "fsd:audited_tokens", "Tokens of audited texts, as served and lossless.", labels=[*_ENGINE, "decoding"]
        )
        first = GaugeMetricFamily(
            "fsd:audited_first_difference_mean", "Mean place of the first token that differs, of changed texts.",
            labels=_ENGINE,
        )  # fmt: skip
        outcomes = CounterMetricFamily(
            "fsd:audited_outcomes", "Which of the served and the lossless text are right, by the grader: both, lost "
            "(the lossless one alone), gained (the served one alone), neither.", labels=[*_ENGINE, "outcome"],
        )  # fmt: skip
        for labels, counted in self._counted(AUDITS, audit.NAMES):
            for kind in ("same", "changed", "sampled", "dropped"):
                texts.add_metric([*labels, kind], counted[kind])
            tokens.add_metric([*labels, "served"], counted["tokens"])
            tokens.add_metric([*labels, "lossless"], counted["lossless_tokens"])
            if counted["changed"]:
                first.add_metric(labels, counted["first_difference"] / counted["changed"])
            for outcome in audit.OUTCOMES:
                outcomes.add_metric([*labels, outcome], counted[outcome])
        yield from (texts, tokens, first, outcomes)

    def _info(self) -> Any:
        info = InfoMetricFamily("fsd:profile", "The profile that is followed.", labels=["order"])
        for order, (_, profile) in enumerate(self.engines):
            facts = {"task": profile.task, "score": profile.score, "threshold": str(profile.threshold),
                     "digest": profile.digest or ""}  # fmt: skip
            info.add_metric([str(order)], facts)
        return info

    def _expected(self) -> Any:
        expected = GaugeMetricFamily(
            "fsd:acceptance_rate_expected", "Range of the mean acceptance rate over 200 texts that the profile "
            "expects.", labels=["order", "end"],
        )  # fmt: skip
        for order, (_, profile) in enumerate(self.engines):
            if profile.acceptance is not None:
                low, high = expected_range(profile.acceptance)
                expected.add_metric([str(order), "low"], max(low, 0.0))
                expected.add_metric([str(order), "high"], min(high, 1.0))
        return expected


_ENGINE = ("order", "engine")
_metrics = Metrics()
