"""Timing of a calibration's settings: in which processes, if at all, and on how many problems of which part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.nn import Module

from fsd_calib.calibration.plan import Paces
from fsd_calib.calibration.session import Session
from fsd_calib.certification.holdout import HoldoutAttempt
from fsd_calib.engines.own import OwnEngine, source_of
from fsd_calib.measuring.evaluator import Evaluator
from fsd_calib.measuring.interleaved import (
    LOOKS,
    WALL,
    WALL_AND_CPU,
    MachineLoad,
    Until,
    machine_load,
    measure_speeds,
    pieces,
)
from fsd_calib.measuring.speed import ForecastSpeeds, Interval, Speeds, TimedSpeeds
from fsd_calib.measuring.timing_job import TimingJob, alone_among, time_in_fresh_processes
from fsd_calib.options.goal import Goal
from fsd_calib.options.run_config import Timing
from fsd_calib.search.forecast import Forecast
from fsd_calib.tasks.base import Problem
from fsd_calib.tasks.split import Parts
from fsd_collectors.split import Part
from fsd_common.argument_checks import named
from fsd_common.errors import UsageError
from fsd_common.formatting import interval
from fsd_decoding.profile.parts import EarlyStopInfo
from fsd_decoding.profile.setting import Setting
from fsd_decoding.workers.model_workers import Sources

_FEWEST = 12  # problems per stream, where there are as many: one to warm up, and enough for an interval
_OTHERS = 4  # one tuning problem in so many is kept for choosing among settings of about the same speed
_PROCESSES = 5  # fresh ones: at 95 % Student's t then reaches 2.8 standard errors to either side
_COUNTED = 300  # tuning problems at least, whose rounds make a forecast where nothing is timed
_CHOOSING, _CHOICES = (
    0.1,
    3,
)  # share of the time for a choice, and the most choices: of the lossless rival, maybe twice, and of T
_DRAFT_ALONE, _SINGLE = 0.1, 0.2  # shares for the draft alone, and for one stream where several are served
_SHARE_OF_REST = 1 / 3  # timing may take so much of the time of all other steps, or ALWAYS
ALWAYS = 45.0
"""Seconds that timing may take in any case."""
_ENOUGH = 20  # turns that there is time for even where they take longer

Opened = HoldoutAttempt | Evaluator
"""The certification part, after its decision, when its problems may be used for anything."""


def check_timing(way: Timing, goal: Goal, sources: Sources) -> None:
    """Checks what is requested of timing.

    Raises:
        UsageError: The goal is a speed and nothing is to be timed, or a fresh process cannot load these models.
    """
    if way == "careful":
        sources.check_loadable("timing is 'careful'", "a fresh process", "time with 'run'")
    if way == "none" and goal.min_speed is not None:
        raise UsageError(
            f"{named('min_speed')} is {goal.min_speed:g}, and only timing shows whether that is reached, which "
            f"{named('timing')} none forbids; leave one of the two out"
        )


def check_enough_to_time(parts: Parts, streams: int) -> None:
    """Raises UsageError where there are too few problems for so many streams, before models are loaded."""
    pieces(_to_time(parts.tuning, streams), streams)


def _to_time(tuning: Sequence[Problem], streams: int) -> Sequence[Problem]:
    """Returns the tuning problems that speeds are from; choices are made by the others."""
    return tuning[: max(len(tuning) - len(tuning) // _OTHERS, _FEWEST * streams)]


@dataclass(frozen=True)
class Timed:
    """Speeds, the part that their problems are from, the machine's load when timing began, where it is known, and the
    CPU threads of this process, where it decoded on a CPU."""

    speeds: Speeds[Setting]
    part: Part
    load: MachineLoad | None = None
    threads: int | None = None


@dataclass(frozen=True)
class Timer:
    """Times the settings of one calibration, or forecasts their speeds.

    Attributes:
        way: within the calibration's own process, in fresh ones, or not at all.
        sources: where fresh processes load the models from.
        forecast: converts counted rounds into tokens/s; None: nothing is forecast.
        early_stop: the folder of the predictor that ends drafts early, and the costs it weighs.
        seconds: planned for all that is timed, in all processes; twice as long is not exceeded, see `Until`.
    """

    session: Session
    goal: Goal
    way: Timing
    sources: Sources
    forecast: Forecast | None = None
    early_stop: tuple[Path, EarlyStopInfo] | None = None
    seconds: float = ALWAYS

    def within(self, paces: Paces, rest: float) -> Timer:
        """Returns a timer with the time that a plan has for it.

        That is as long as all turns take, but a share of the other steps' time at most. Fresh processes have as much
        each.

        Args:
            paces: seconds of decodings as one of the streams that are served.
            rest: seconds that all other steps are expected to take.
        """
        if self.way == "none":
            return replace(self, seconds=0.0)
        allowed = max(_SHARE_OF_REST * rest, ALWAYS, self._seconds_of(_ENOUGH, paces))
        return replace(self, seconds=self._processes * min(self._seconds_of(LOOKS[-1], paces), allowed))

    def time(self, settings: Sequence[Setting], opened: Opened | None = None) -> Timed:
        """Times settings with as many streams as are served.

        Args:
            settings: the target alone, the lossless rival, and a chosen one if there is any, in this order.
        """
        if self.way == "none":
            return self._forecast_speeds()
        load = machine_load()
        if load is not None and load.busy:
            self.session.progress.note(f"the machine is busy ({load} as timing begins): speeds may come out low")
        part, problems = self._problems(self.goal.serve_batch, opened)
        decided = self._decides(settings, self.goal.min_speed)
        with self.session.threads_for(self.goal.serve_batch) as threads:
            speeds = self._speeds(settings, problems, self.goal.serve_batch, self._served, decided)
        ratio = _over_lossless(speeds, settings)
        if ratio is not None and not ratio.excludes(1):
            self.session.progress.note(_undecided(ratio, settings[-2]))
        return Timed(speeds, part, load, threads)

    def _forecast_speeds(self) -> Timed:
        def forecast(setting: Setting) -> float:
            self.session.tuning.measure(setting, _COUNTED)
            return self.forecast_of(setting)

        return Timed(ForecastSpeeds[Setting](forecast), "tuning")

    def time_single(self, settings: Sequence[Setting], opened: Opened | None) -> Speeds[Setting] | None:
        """Times settings with one stream, on problems of the same part.

        None: one stream is served anyway, or nothing is to be timed.
        """
        if self.way == "none" or self.goal.serve_batch == 1:
            return None
        _, problems = self._problems(self.goal.serve_batch, opened)
        with self.session.threads_for(1):
            return self._speeds(settings, problems, 1, _SINGLE, self._decides(settings))

    def time_here(self, setting: Setting, opened: Opened | None) -> Interval | None:
        """Times a setting in this process, until there is an interval, on the problems that `time` takes.

        None: nothing is to be timed.
        """
        if self.way == "none":
            return None
        _, problems = self._problems(self.goal.serve_batch, opened)
        with self.session.threads_for(self.goal.serve_batch):
            speeds = self._speeds_here(
                [setting], problems, self.goal.serve_batch, _DRAFT_ALONE,
                lambda speeds: speeds.of(setting).bounded,
            )  # fmt: skip
        return speeds.of(setting)

    def fastest(self, settings: Sequence[Setting]) -> Setting:
        """Returns the fastest setting by the clock, in this process: the first one, unless another is faster
        beyond the noise. So several that are about equally fast end in the same choice in every run.

        It is timed on tuning problems that no reported speed is from: the fastest of several was also lucky. Where
        nothing is to be timed, or too few problems are left, the first one is returned.
        """
        streams, tuning = self.goal.serve_batch, self.session.tuning.problems
        first, *others = settings
        problems = tuning[len(_to_time(tuning, streams)) :]
        if self.way == "none" or not others or len(problems) < _FEWEST * streams:
            return first

        def decided(speeds: TimedSpeeds[Setting]) -> bool:
            return all(speeds.ratio(other, first).excludes(1) for other in others)

        with self.session.threads_for(streams):
            speeds = self._speeds_here(settings, problems, streams, _CHOOSING, decided)
        faster = [other for other in others if speeds.ratio(other, first).low > 1]
        return max(faster, key=lambda other: speeds.ratio(other, first).value, default=first)

    def forecast_of(self, setting: Setting) -> float:
        """Returns forecast tokens/s of one stream, by the rounds on all tuning problems decoded so far."""
        assert self.forecast is not None
        return self.forecast.measured(self.session.tuning.counted(setting))

    def effort(self, paces: Paces) -> tuple[int, float]:
        """Returns the number of decodings that there is time for, and the mean time of one. `paces`: see `within`."""
        mean = (paces.target + paces.lossless + paces.fuzzy) / 3
        decodings = round(self.seconds / mean)
        return decodings, self.seconds / max(decodings, 1)

    @property
    def reported(self) -> float:
        """Share of the time that reported speeds have; the rest is for choices and the draft alone."""
        return self._served + self._single

    @property
    def _single(self) -> float:
        return _SINGLE if self.goal.serve_batch > 1 else 0.0

    @property
    def _served(self) -> float:
        """Share of the time for the streams that are served, each time that they are timed."""
        whole = 1 - _CHOICES * _CHOOSING - _DRAFT_ALONE - self._single
        return whole if self.goal.min_speed is None else whole / 2  # before and after a search

    @property
    def _processes(self) -> int:
        return _PROCESSES if self.way == "careful" else 1

    def _seconds_of(self, turns: int, paces: Paces) -> float:
        """Returns how long so many turns take, with what is timed beside them."""
        _, problems = self._problems(self.goal.serve_batch, None)
        piece = len(pieces(problems, self.goal.serve_batch)[0])
        served = piece * (min(turns, LOOKS[0]) * paces.target + turns * (paces.lossless + paces.fuzzy))
        return served / self._served

    def _problems(self, streams: int, opened: Opened | None) -> tuple[Part, Sequence[Problem]]:
        """The problems of the certification part, or of the tuning part where the other is closed or has too few."""
        tuning = _to_time(self.session.tuning.problems, streams)
        certification: Sequence[Problem] = () if opened is None else opened.problems
        few = len(certification) < min(len(tuning), _FEWEST * streams)
        return ("tuning", tuning) if opened is None or few else ("certification", certification)

    def _decides(
        self, settings: Sequence[Setting], wanted: float | None = None
    ) -> Callable[[TimedSpeeds[Setting]], bool]:
        """Returns whether speeds decide what they are timed for: chosen against rival, and the wanted speed."""

        def decided(speeds: TimedSpeeds[Setting]) -> bool:
            ratio = _over_lossless(speeds, settings)
            reached = wanted is None or speeds.of(settings[-1]).excludes(wanted)
            return reached and (ratio is None or ratio.excludes(1))

        return decided

    def _speeds(
        self, settings: Sequence[Setting], problems: Sequence[Problem], streams: int, share: float,
        decided: Callable[[TimedSpeeds[Setting]], bool],
    ) -> Speeds[Setting]:  # fmt: skip
        """Times settings. `share`: of the time."""
        session = self.session
        if self.way == "careful":
            if session.workers is not None:
                session.workers.pool.close()  # they too hold models on the GPU; they start again where there is more
            job = self._job(settings, problems, streams, share)
            return time_in_fresh_processes(job, _PROCESSES, _models(session), session.progress)
        return self._speeds_here(settings, problems, streams, share, decided)

    def _speeds_here(
        self, settings: Sequence[Setting], problems: Sequence[Problem], streams: int, share: float,
        decided: Callable[[TimedSpeeds[Setting]], bool],
    ) -> TimedSpeeds[Setting]:  # fmt: skip
        session = self.session

        def emitted(setting: Setting, piece: Sequence[Problem]) -> int:
            return session.decode.emitted(setting, piece, streams)

        return measure_speeds(
            emitted, settings, problems, streams=streams, confidence=self.goal.confidence,
            until=Until(share * self.seconds / self._processes, decided), briefly=alone_among(settings),
            progress=session.progress, clocks=WALL_AND_CPU if session.engine.on_own_cpu else WALL,
        )  # fmt: skip

    def _job(self, settings: Sequence[Setting], problems: Sequence[Problem], streams: int, share: float) -> TimingJob:
        session, decoder = self.session, self.session.decoder
        return TimingJob(
            source=source_of(decoder, session.task, self.sources, self.early_stop, session.engine.stop_policy),
            problems=problems, settings=settings, keys=[session.decode.key(c).json for c in settings],
            seed=decoder.seed, streams=streams, confidence=self.goal.confidence, threads=torch.get_num_threads(),
            compile=decoder.compile, seconds=share * self.seconds / _PROCESSES,
        )  # fmt: skip


def _over_lossless(speeds: Speeds[Setting], settings: Sequence[Setting]) -> Interval | None:
    """Returns the ratio that is to be decided; None: nothing but the target and the lossless rival is timed."""
    return speeds.ratio(settings[-1], settings[-2]) if len(settings) > 2 else None


def _undecided(ratio: Interval, rival: Setting) -> str:
    between = f"{ratio.value:.2f}x, {interval((ratio.low, ratio.high), 2)}" if ratio.bounded else "too few turns"
    return f"timing could not tell whether the setting is faster or slower than {rival.rule} ({between})"


def _models(session: Session) -> list[Any]:
    """The models that this process has loaded."""
    engines = [session.engine, *session.drafts.values()]
    decoders = [engine.decoder for engine in engines if isinstance(engine, OwnEngine)]
    loaded = [*(decoder.target for decoder in decoders[:1]), *(decoder.draft for decoder in decoders)]
    return [model for model in loaded if isinstance(model, Module)]
