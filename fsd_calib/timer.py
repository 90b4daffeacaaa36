"""Times what a calibration found: on which problems, and how often, follows from what it was asked and came to.

Beside what the clock says stands the forecast of a setting, one number wherever it is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from fsd_calib.certifying.sealed import Opened
from fsd_calib.measuring.configuration import Configuration
from fsd_calib.measuring.in_turn import measure_speeds
from fsd_calib.measuring.machine_load import MachineLoad, machine_load
from fsd_calib.measuring.speed import ForecastSpeeds, Speeds
from fsd_calib.measuring.timing_job import Job, timed_afresh
from fsd_calib.searching.forecast import Forecast
from fsd_calib.tasks import Problem
from fsd_calib.timing import TimingAsked, problems_of, problems_to_time
from fsd_calib.wish import Wish
from fsd_calib.workbench import Workbench
from fsd_collectors.parts import Part
from fsd_decoding.profile_parts import EarlyStopInfo

_PROCESSES = 5  # fresh ones: at 95 % Student's t then reaches 2.8 standard errors to either side
_SINGLE = 26  # problems at most, of one stream beside several, which decide
_COUNTED = 300  # tuning problems at least, whose rounds tell a speed where nothing is timed
_WAYS = 12  # decodings of a problem: three repeats of four configurations; a contest, if there is one, comes on top
_FEWEST_OTHERS = 12  # problems a stream, that choose among settings about as fast


@dataclass(frozen=True)
class Timed:
    """Speeds, the part of their problems, and how busy the machine was when timing began, where that is known."""

    speeds: Speeds[Configuration]
    part: Part
    load: MachineLoad | None = None


@dataclass(frozen=True)
class Timer:
    """Of one calibration.

    Attributes:
        forecast: makes tokens/s of counted rounds.
        early_stop: the folder of the predictor that ends drafts early, and what it weighs.
    """

    bench: Workbench
    wish: Wish
    asked: TimingAsked
    forecast: Forecast
    early_stop: tuple[Path, EarlyStopInfo] | None = None

    def time(self, configurations: Sequence[Configuration], opened: Opened | None = None) -> Timed:
        """With as many streams as are served.

        Args:
            opened: the certification part, after its decision: its problems are free from then on.
        """
        if self.asked.way == "none":
            return self._untimed()
        load = machine_load()
        if load is not None and load.busy:
            self.bench.progress.note(
                f"the machine is busy (load {load.average:.1f} on {load.cores} cores as timing begins): speeds may "
                "come out low"
            )
        part, problems = self._problems(self.wish.serve_batch, opened)
        return Timed(self._speeds(configurations, problems, self.wish.serve_batch), part, load)

    def fastest(self, configurations: Sequence[Configuration]) -> Configuration:
        """By the clock, on tuning problems that no printed speed is of, since the fastest of several was lucky too; the
        first where nothing is to be timed, or too few problems are left for it."""
        streams = self.wish.serve_batch
        count = self._count(streams)
        others = self.bench.tuning.problems[count : 2 * count]  # the first so many may give what is printed
        if self.asked.way == "none" or len(configurations) == 1 or len(others) < _FEWEST_OTHERS * streams:
            return configurations[0]
        speeds = self._speeds(configurations, others, streams)
        return max(configurations, key=lambda c: speeds.of(c).value)

    def foretold(self, configuration: Configuration) -> float:
        """Its forecast: tokens/s of one stream by the rounds it took on all tuning problems that it was decoded on."""
        return self.forecast.measured(self.bench.tuning.counted(configuration))

    def single(self, configurations: Sequence[Configuration], opened: Opened | None) -> Speeds[Configuration] | None:
        """With one stream, on fewer problems of the same part, beside the several that are served; None: one is
        served, or nothing is to be timed."""
        if not self._single:
            return None
        _, problems = self._problems(self.wish.serve_batch, opened)
        return self._speeds(configurations, problems[: self._single], 1)

    def effort(self, seconds: float) -> tuple[int, float]:
        """Decodings to expect, and what one takes on average, where one among the streams served takes `seconds`.
        Alone it takes at most as long as all of them side by side."""
        if self.asked.way == "none":
            return 0, 0.0
        streams, single = self.wish.serve_batch, self._single
        there_are = max(len(self.bench.tuning.problems), self.bench.sealed.problems)
        served = min(self._count(streams), there_are)
        processes = _PROCESSES if self.asked.way == "careful" else 1
        each = seconds * (served + single * streams) / (served + single)
        return _WAYS * processes * (served + single), each

    @property
    def _single(self) -> int:
        """Problems timed with one stream beside several."""
        if self.asked.way == "none" or self.wish.serve_batch == 1:
            return 0
        return min(self._count(1), _SINGLE)

    def _count(self, streams: int) -> int:
        return problems_to_time(problems_of(self.bench), streams)

    def _problems(self, streams: int, opened: Opened | None) -> tuple[Part, Sequence[Problem]]:
        """Of the tuning part where the other is sealed, or too small."""
        count = self._count(streams)
        tuning, certification = self.bench.tuning.problems[:count], () if opened is None else opened.problems[:count]
        return ("tuning", tuning) if len(certification) < len(tuning) else ("certification", certification)

    def _untimed(self) -> Timed:
        def told(configuration: Configuration) -> float:
            self.bench.tuning.measure(configuration, _COUNTED)
            return self.foretold(configuration)

        return Timed(ForecastSpeeds[Configuration](told), "tuning")

    def _speeds(
        self, configurations: Sequence[Configuration], problems: Sequence[Problem], streams: int
    ) -> Speeds[Configuration]:
        bench = self.bench
        if self.asked.way == "careful":
            models = [bench.decoder.target, bench.decoder.draft, *(d.draft for d in bench.drafts.values())]
            return timed_afresh(self._job(configurations, problems, streams), _PROCESSES, models, bench.progress)

        def emitted(configuration: Configuration, piece: Sequence[Problem]) -> int:
            return bench.decode.emitted(configuration, piece, streams)

        return measure_speeds(
            emitted, configurations, problems, streams=streams, confidence=self.wish.confidence,
            progress=bench.progress,
        )  # fmt: skip

    def _job(self, configurations: Sequence[Configuration], problems: Sequence[Problem], streams: int) -> Job:
        decoder, task = self.bench.decoder, self.bench.task
        return Job(
            sources=self.asked.sources, sampling=decoder.sampling, criterion=decoder.criterion, seed=decoder.seed,
            problems=problems, max_new_tokens=task.max_new_tokens, stop=task.stop, configurations=configurations,
            keys=[self.bench.decode.key(c).json for c in configurations], early_stop=self.early_stop, streams=streams,
            confidence=self.wish.confidence, threads=torch.get_num_threads(),
        )  # fmt: skip
