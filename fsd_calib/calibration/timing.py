"""How speeds are to be timed: in which processes, if at all, and on how many problems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch

from fsd_calib.calibration.goal import Goal
from fsd_calib.calibration.session import Session
from fsd_calib.certification.holdout import HoldoutAttempt
from fsd_calib.measuring.configuration import Configuration
from fsd_calib.measuring.interleaved import MachineLoad, machine_load, measure_speeds, pieces
from fsd_calib.measuring.speed import ForecastSpeeds, Speeds
from fsd_calib.measuring.timing_job import Sources, TimingJob, time_in_fresh_processes
from fsd_calib.search.forecast import Forecast
from fsd_calib.tasks.base import Problem
from fsd_collectors.split import Part
from fsd_decoding.errors import UsageError
from fsd_decoding.loading import is_source
from fsd_decoding.profile.parts import EarlyStopInfo

# MERGED: """Times what a calibration found: on which problems, and how often, follows from what it was asked and came to.
#
# Beside what the clock says stands the forecast of a setting, one number wherever it is told.
# """


Way = Literal["run", "careful", "none"]
"""Within the calibration's own process, in fresh ones, or not at all."""

_SHARE = 20  # one problem in so many
_FEWEST = 12  # problems a stream; of one stream the first warms up
_MOST, _MOST_OF_SEVERAL = 51, 40  # of one stream, and of each of several


@dataclass(frozen=True)
class TimingRequest:
    """What a user asks for, and where the models come from.

    Raises:
        UsageError: there is no such way, or these models cannot be loaded anew.
    """

    way: Way
    sources: Sources

    def __post_init__(self) -> None:
        if self.way not in get_args(Way):
            raise UsageError(f"--timing is {self.way!r}; it must be one of {', '.join(get_args(Way))}")
        for role, model in (("target", self.sources.target), *(("draft", draft) for draft in self.sources.drafts)):
            if self.way == "careful" and not is_source(model):
                raise UsageError(
                    f"timing is 'careful', and the {role} is a loaded {type(model).__name__}, which a fresh process "
                    "cannot load: give its path or hub id, or time with 'run'"
                )

    def check(self, goal: Goal) -> None:
        """UsageError: the wish's answer is a timing, and nothing is to be timed."""
        if self.way == "none" and goal.min_speed is not None:
            raise UsageError(
                f"--min-speed is {goal.min_speed:g}, and whether that is reached is timed, which --no-timing forbids; "
                "leave one of the two out"
            )

    def check_enough(self, session: Session, streams: int) -> None:
        """UsageError: too few for so many streams; better now than after the work."""
        if self.way != "none":
            pieces(session.tuning.problems[: problems_to_time(problems_of(session), streams)], streams)


def problems_of(session: Session) -> int:
    """In both parts."""
    return len(session.tuning.problems) + session.holdout.problems


def problems_to_time(problems: int, streams: int) -> int:
    """Of so many: few where there are few, since a calibration of 60 problems shall not spend its time on timing."""
    most = _MOST if streams == 1 else _MOST_OF_SEVERAL * streams
    return min(max(problems // _SHARE, _FEWEST * streams), most)


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

    session: Session
    goal: Goal
    asked: TimingRequest
    forecast: Forecast
    early_stop: tuple[Path, EarlyStopInfo] | None = None

    def time(self, configurations: Sequence[Configuration], opened: HoldoutAttempt | None = None) -> Timed:
        """With as many streams as are served.

        Args:
            opened: the certification part, after its decision: its problems are free from then on.
        """
        if self.asked.way == "none":
            return self._untimed()
        load = machine_load()
        if load is not None and load.busy:
            self.session.progress.note(
                f"the machine is busy (load {load.average:.1f} on {load.cores} cores as timing begins): speeds may "
                "come out low"
            )
        part, problems = self._problems(self.goal.serve_batch, opened)
        return Timed(self._speeds(configurations, problems, self.goal.serve_batch), part, load)

    def fastest(self, configurations: Sequence[Configuration]) -> Configuration:
        """By the clock, on tuning problems that no printed speed is of, since the fastest of several was lucky too; the
        first where nothing is to be timed, or too few problems are left for it."""
        streams = self.goal.serve_batch
        count = self._count(streams)
        others = self.session.tuning.problems[count : 2 * count]  # the first so many may give what is printed
        if self.asked.way == "none" or len(configurations) == 1 or len(others) < _FEWEST_OTHERS * streams:
            return configurations[0]
        speeds = self._speeds(configurations, others, streams)
        return max(configurations, key=lambda c: speeds.of(c).value)

    def foretold(self, configuration: Configuration) -> float:
        """Its forecast: tokens/s of one stream by the rounds it took on all tuning problems that it was decoded on."""
        return self.forecast.measured(self.session.tuning.counted(configuration))

    def single(
        self, configurations: Sequence[Configuration], opened: HoldoutAttempt | None
    ) -> Speeds[Configuration] | None:
        """With one stream, on fewer problems of the same part, beside the several that are served; None: one is
        served, or nothing is to be timed."""
        if not self._single:
            return None
        _, problems = self._problems(self.goal.serve_batch, opened)
        return self._speeds(configurations, problems[: self._single], 1)

    def effort(self, seconds: float) -> tuple[int, float]:
        """Decodings to expect, and what one takes on average, where one among the streams served takes `seconds`.
        Alone it takes at most as long as all of them side by side."""
        if self.asked.way == "none":
            return 0, 0.0
        streams, single = self.goal.serve_batch, self._single
        there_are = max(len(self.session.tuning.problems), self.session.holdout.problems)
        served = min(self._count(streams), there_are)
        processes = _PROCESSES if self.asked.way == "careful" else 1
        each = seconds * (served + single * streams) / (served + single)
        return _WAYS * processes * (served + single), each

    @property
    def _single(self) -> int:
        """Problems timed with one stream beside several."""
        if self.asked.way == "none" or self.goal.serve_batch == 1:
            return 0
        return min(self._count(1), _SINGLE)

    def _count(self, streams: int) -> int:
        return problems_to_time(problems_of(self.session), streams)

    def _problems(self, streams: int, opened: HoldoutAttempt | None) -> tuple[Part, Sequence[Problem]]:
        """Of the tuning part where the other is sealed, or too small."""
        count = self._count(streams)
        tuning, certification = self.session.tuning.problems[:count], () if opened is None else opened.problems[:count]
        return ("tuning", tuning) if len(certification) < len(tuning) else ("certification", certification)

    def _untimed(self) -> Timed:
        def told(configuration: Configuration) -> float:
            self.session.tuning.measure(configuration, _COUNTED)
            return self.foretold(configuration)

        return Timed(ForecastSpeeds[Configuration](told), "tuning")

    def _speeds(
        self, configurations: Sequence[Configuration], problems: Sequence[Problem], streams: int
    ) -> Speeds[Configuration]:
        session = self.session
        if self.asked.way == "careful":
            models = [session.decoder.target, session.decoder.draft, *(d.draft for d in session.drafts.values())]
            return time_in_fresh_processes(
                self._job(configurations, problems, streams), _PROCESSES, models, session.progress
            )

        def emitted(configuration: Configuration, piece: Sequence[Problem]) -> int:
            return session.decode.emitted(configuration, piece, streams)

        return measure_speeds(
            emitted, configurations, problems, streams=streams, confidence=self.goal.confidence,
            progress=session.progress,
        )  # fmt: skip

    def _job(self, configurations: Sequence[Configuration], problems: Sequence[Problem], streams: int) -> TimingJob:
        decoder, task = self.session.decoder, self.session.task
        return TimingJob(
            sources=self.asked.sources, sampling=decoder.sampling, criterion=decoder.criterion, seed=decoder.seed,
            problems=problems, max_new_tokens=task.max_new_tokens, stop=task.stop, configurations=configurations,
            keys=[self.session.decode.key(c).json for c in configurations], early_stop=self.early_stop, streams=streams,
            confidence=self.goal.confidence, threads=torch.get_num_threads(),
        )  # fmt: skip
