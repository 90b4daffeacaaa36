"""Timing of a calibration's settings: in which processes, if at all, and on how many problems of which part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch.nn import Module

from fsd_calib.calibration.goal import Goal
from fsd_calib.calibration.plan import Paces
from fsd_calib.calibration.session import Session
from fsd_calib.certification.holdout import HoldoutAttempt
from fsd_calib.engines.configuration import Configuration
from fsd_calib.engines.own.engine import OwnEngine
from fsd_calib.engines.own.source import source_of
from fsd_calib.measuring.interleaved import MachineLoad, machine_load, measure_speeds, pieces
from fsd_calib.measuring.speed import ForecastSpeeds, Interval, Speeds
from fsd_calib.measuring.timing_job import TimingJob, time_in_fresh_processes
from fsd_calib.search.forecast import Forecast
from fsd_calib.tasks.base import Problem
from fsd_calib.tasks.split import Parts
from fsd_collectors.split import Part
from fsd_decoding.errors import UsageError
from fsd_decoding.profile.parts import EarlyStopInfo
from fsd_decoding.workers.sources import Sources

Way = Literal["run", "careful", "none"]
"""Times within the calibration's own process, in fresh ones, or not at all."""

_SHARE = 20  # one problem in so many is timed
_FEWEST = 12  # problems per stream; with one stream the first one warms up
_MOST, _MOST_OF_SEVERAL = 51, 40  # problems with one stream, and for each of several
_PROCESSES = 5  # fresh ones: at 95 % Student's t then reaches 2.8 standard errors to either side
_SINGLE = 26  # problems at most, with one stream, beside the streams that are served
_COUNTED = 300  # tuning problems at least, whose rounds make a forecast where nothing is timed
_WAYS = 12  # decodings of a problem: three repeats of four configurations; choosing the fastest comes on top
_SHARE_OF_REST, _ALWAYS = 1 / 3, 45.0  # timing may take so much of the time of all other steps, or so many seconds
_ENOUGH = 20  # problems per stream that are timed even where that takes longer, if there are as many
_FEWEST_TO_CHOOSE = 12  # problems per stream, for choosing among settings of about the same speed


@dataclass(frozen=True)
class TimingRequest:
    """What the user requests of timing, and where the models come from.

    Raises:
        UsageError: the way is unknown, or these models cannot be loaded by a fresh process.
    """

    way: Way
    sources: Sources

    def __post_init__(self) -> None:
        if self.way not in get_args(Way):
            raise UsageError(f"--timing is {self.way!r}; it must be one of {', '.join(get_args(Way))}")
        if self.way == "careful":
            self.sources.check_loadable("timing is 'careful'", "a fresh process", "time with 'run'")

    def check(self, goal: Goal) -> None:
        """Raises UsageError where the goal is a speed and nothing is to be timed."""
        if self.way == "none" and goal.min_speed is not None:
            raise UsageError(
                f"--min-speed is {goal.min_speed:g}, and only timing shows whether that is reached, which --no-timing "
                "forbids; leave one of the two out"
            )

    def check_enough(self, parts: Parts, streams: int) -> None:
        """Raises UsageError where there are too few problems for so many streams, before models are loaded."""
        if self.way != "none":
            problems = len(parts.tuning) + len(parts.certification)
            pieces(parts.tuning[: problems_to_time(problems, streams)], streams)


def problems_of(session: Session) -> int:
    """Returns the number of problems of both parts."""
    return len(session.tuning.problems) + session.holdout.problems


def problems_to_time(problems: int, streams: int) -> int:
    """Returns how many of `problems` are timed: few where there are few, so that timing stays a small part."""
    most = _MOST if streams == 1 else _MOST_OF_SEVERAL * streams
    return min(max(problems // _SHARE, _FEWEST * streams), most)


@dataclass(frozen=True)
class Timed:
    """Speeds, the part that their problems are from, the machine's load when timing began, where it is known, and the
    CPU threads of this process, where it decoded on a CPU."""

    speeds: Speeds[Configuration]
    part: Part
    load: MachineLoad | None = None
    threads: int | None = None


@dataclass(frozen=True)
class Timer:
    """Times the configurations of one calibration, or forecasts their speeds.

    Attributes:
        forecast: converts counted rounds into tokens/s.
        early_stop: the folder of the predictor that ends drafts early, and the costs it weighs.
        most: problems to time at most, with as many streams as are served; None: as many as there are problems for.
    """

    session: Session
    goal: Goal
    request: TimingRequest
    forecast: Forecast
    early_stop: tuple[Path, EarlyStopInfo] | None = None
    most: int | None = None

    def within(self, paces: Paces, rest: float) -> Timer:
        """Returns a timer whose problems are fewer where timing would take long beside the other steps.

        Timing careful is asked for, and takes its time.

        Args:
            paces: as of `effort`.
            rest: seconds that all other steps are expected to take.
        """
        decodings, each = self.effort(paces)
        allowed, planned = max(_SHARE_OF_REST * rest, _ALWAYS), decodings * each
        if self.request.way == "careful" or planned <= allowed:
            return self
        streams = self.goal.serve_batch
        return replace(self, most=max(int(self._count(streams) * allowed / planned), _ENOUGH * streams))

    def time(self, configurations: Sequence[Configuration], opened: HoldoutAttempt | None = None) -> Timed:
        """Times configurations with as many streams as are served.

        Args:
            opened: the certification part, after its decision, when its problems may be used for anything.
        """
        if self.request.way == "none":
            return self._forecast_speeds()
        load = machine_load()
        if load is not None and load.busy:
            self.session.progress.note(
                f"the machine is busy (load {load.average:.1f} on {load.cores} cores as timing begins): speeds may "
                "come out low"
            )
        part, problems = self._problems(self.goal.serve_batch, opened)
        with self.session.threads_for(self.goal.serve_batch) as threads:
            return Timed(self._speeds(configurations, problems, self.goal.serve_batch), part, load, threads)

    def _forecast_speeds(self) -> Timed:
        def forecast(configuration: Configuration) -> float:
            self.session.tuning.measure(configuration, _COUNTED)
            return self.forecast_of(configuration)

        return Timed(ForecastSpeeds[Configuration](forecast), "tuning")

    def time_single(
        self, configurations: Sequence[Configuration], opened: HoldoutAttempt | None
    ) -> Speeds[Configuration] | None:
        """Times configurations with one stream, on fewer problems of the same part.

        None: one stream is served anyway, or nothing is to be timed.
        """
        if not self._single_count:
            return None
        _, problems = self._problems(self.goal.serve_batch, opened)
        with self.session.threads_for(1):
            return self._speeds(configurations, problems[: self._single_count], 1)

    def time_here(self, configuration: Configuration, opened: HoldoutAttempt | None) -> Interval | None:
        """Times a configuration in this process, on the problems that `time` takes; None: nothing is to be timed."""
        if self.request.way == "none":
            return None
        _, problems = self._problems(self.goal.serve_batch, opened)
        with self.session.threads_for(self.goal.serve_batch):
            return self._speeds_here([configuration], problems, self.goal.serve_batch).of(configuration)

    def fastest(self, configurations: Sequence[Configuration]) -> Configuration:
        """Returns the fastest configuration by the clock.

        It is timed on tuning problems that no reported speed is from: the fastest of several was also lucky. Where
        nothing is to be timed, or too few problems are left, the first one is returned.
        """
        streams = self.goal.serve_batch
        count = self._count(streams)
        problems = self.session.tuning.problems[count : 2 * count]  # reported speeds may be from those before
        if self.request.way == "none" or len(configurations) == 1 or len(problems) < _FEWEST_TO_CHOOSE * streams:
            return configurations[0]
        with self.session.threads_for(streams):
            speeds = self._speeds(configurations, problems, streams)
        return max(configurations, key=lambda c: speeds.of(c).value)

    def forecast_of(self, configuration: Configuration) -> float:
        """Returns forecast tokens/s of one stream, by the rounds on all tuning problems decoded so far."""
        return self.forecast.measured(self.session.tuning.counted(configuration))

    def effort(self, paces: Paces) -> tuple[int, float]:
        """Returns the number of decodings to expect, and the mean time of one.

        Args:
            paces: seconds of decodings as one of the streams that are served. With a single stream they take at most as
                long as all of them side by side.
        """
        if self.request.way == "none":
            return 0, 0.0
        streams, single = self.goal.serve_batch, self._single_count
        available = max(len(self.session.tuning.problems), self.session.holdout.problems)
        served = min(self._count(streams), available)
        processes = _PROCESSES if self.request.way == "careful" else 1
        mean = (paces.target + 2 * paces.lossless + paces.fuzzy) / 4  # two draft lengths of `sd`
        each = mean * (served + single * streams) / (served + single)
        return _WAYS * processes * (served + single), each

    @property
    def _single_count(self) -> int:
        """Problems timed with one stream beside several."""
        if self.request.way == "none" or self.goal.serve_batch == 1:
            return 0
        return min(self._count(1), _SINGLE)

    def _count(self, streams: int) -> int:
        count = problems_to_time(problems_of(self.session), streams)
        return count if self.most is None else min(count, self.most)

    def _problems(self, streams: int, opened: HoldoutAttempt | None) -> tuple[Part, Sequence[Problem]]:
        """Of the certification part, or of the tuning part where the other is not opened or has too few."""
        count = self._count(streams)
        tuning, certification = self.session.tuning.problems[:count], () if opened is None else opened.problems[:count]
        return ("tuning", tuning) if len(certification) < len(tuning) else ("certification", certification)

    def _speeds(
        self, configurations: Sequence[Configuration], problems: Sequence[Problem], streams: int
    ) -> Speeds[Configuration]:
        session = self.session
        if self.request.way == "careful":
            if session.workers is not None:
                session.workers.pool.close()  # they too hold models on the GPU; they start again where there is more
            return time_in_fresh_processes(
                self._job(configurations, problems, streams), _PROCESSES, _models(session), session.progress
            )
        return self._speeds_here(configurations, problems, streams)

    def _speeds_here(
        self, configurations: Sequence[Configuration], problems: Sequence[Problem], streams: int
    ) -> Speeds[Configuration]:
        session = self.session

        def emitted(configuration: Configuration, piece: Sequence[Problem]) -> int:
            return session.decode.emitted(configuration, piece, streams)

        return measure_speeds(
            emitted, configurations, problems, streams=streams, confidence=self.goal.confidence,
            progress=session.progress,
        )  # fmt: skip

    def _job(self, configurations: Sequence[Configuration], problems: Sequence[Problem], streams: int) -> TimingJob:
        session, decoder = self.session, self.session.decoder
        return TimingJob(
            source=source_of(decoder, session.task, self.request.sources, self.early_stop), problems=problems,
            configurations=configurations, keys=[session.decode.key(c).json for c in configurations],
            seed=decoder.seed, streams=streams, confidence=self.goal.confidence, threads=torch.get_num_threads(),
            compile=decoder.compile,
        )  # fmt: skip


def _models(session: Session) -> list[Any]:
    """The models that this process has loaded."""
    engines = [session.engine, *session.drafts.values()]
    decoders = [engine.decoder for engine in engines if isinstance(engine, OwnEngine)]
    loaded = [*(decoder.target for decoder in decoders[:1]), *(decoder.draft for decoder in decoders)]
    return [model for model in loaded if isinstance(model, Module)]
