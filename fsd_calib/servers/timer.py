"""Timing of a server's settings under a load: in turn, on the same requests, with a rest between them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from fsd_calib.calibration.session import TextSession
from fsd_calib.calibration.timing import Opened, Timed
from fsd_calib.measuring.interleaved import pieces
from fsd_calib.measuring.speed import ForecastSpeeds, Speeds, TimedRun, TimedSpeeds
from fsd_calib.options.run_config import Timing
from fsd_calib.search.forecast import Forecast
from fsd_calib.servers.load import Load, Piece, Seen, send
from fsd_calib.servers.requests import ServerEngine, prompts_of, value_of
from fsd_calib.tasks.base import Problem
from fsd_collectors.split import Part
from fsd_common.progress.base import Progress, Silent
from fsd_decoding.profile.setting import Setting

_REST, _LONG_REST = 0.1, 1.0  # seconds before a setting's turn; where its value is set for all requests
_FEWEST, _MOST = 10, 40  # turns: enough for an interval, and more than most speeds need
_BLOCKS = 2  # times that a server is started for each setting
_CHOICE = 8  # turns, where one of several settings is chosen


@dataclass(frozen=True, eq=False)
class LoadTimed(Timed):
    """Speeds under a load, and what else was seen of each setting."""

    seen: Mapping[Setting, Seen] | None = None


@dataclass(frozen=True)
class LoadTimer:
    """Times a calibration's settings. Implements `SettingTimer`.

    Lossless settings are the server's reference, which is timed once.

    Attributes:
        seconds: Planned for each timing; once they are used no further turn begins, after the first ten.
    """

    session: TextSession
    engine: ServerEngine
    load: Load
    way: Timing
    forecast: Forecast
    confidence: float
    seconds: float = math.inf

    def time(self, settings: Sequence[Setting], opened: Opened | None = None) -> Timed:
        """See `Timer.time`."""
        if self.way == "none":
            return Timed(ForecastSpeeds[Setting](self.forecast_of), "tuning")
        part: Part = "tuning" if opened is None else "certification"
        problems = self.session.tuning.problems if opened is None else opened.problems
        if len(problems) < 3 * self.load.at_once:  # too few to be pieces
            part, problems = "tuning", self.session.tuning.problems
        speeds, seen = self._timed(settings, problems, _MOST)
        return LoadTimed(speeds, part, seen=seen)

    def time_single(self, settings: Sequence[Setting], opened: Opened | None) -> Speeds[Setting] | None:
        return None

    def fastest(self, settings: Sequence[Setting]) -> Setting:
        """See `Timer.fastest`."""
        first, *others = settings
        if self.way == "none" or not others:
            return first
        speeds, _ = self._timed(settings, self.session.tuning.problems, _CHOICE)
        faster = [other for other in others if speeds.ratio(other, first).low > 1]
        return max(faster, key=lambda other: speeds.ratio(other, first).value, default=first)

    def forecast_of(self, setting: Setting) -> float:
        return self.forecast.tokens_per_second(setting)

    def _timed(
        self, settings: Sequence[Setting], problems: Sequence[Problem], most: int
    ) -> tuple[TimedSpeeds[Setting], Mapping[Setting, Seen]]:
        alike = {setting: _timed_as(setting) for setting in settings}
        found, seen = time_in_turn(
            self.engine, list(dict.fromkeys(alike.values())), problems, self.load, most=most, seconds=self.seconds,
            confidence=self.confidence, progress=self.session.progress,
        )  # fmt: skip
        (run,) = found.runs
        tokens = {setting: run.tokens[timed] for setting, timed in alike.items()}
        taken = {setting: run.seconds["wall"][timed] for setting, timed in alike.items()}
        runs = [TimedRun(run.pieces, tokens, {"wall": taken})]
        speeds = TimedSpeeds(runs, found.problems, found.confidence, answers=found.answers)
        return speeds, {setting: seen[timed] for setting, timed in alike.items()}


def _timed_as(setting: Setting) -> Setting:
    """The setting that is timed for one: all that are lossless are the server's reference."""
    return setting if setting.threshold is not None else Setting.alone(setting.score)


def time_in_turn(
    engine: ServerEngine, settings: Sequence[Setting], problems: Sequence[Problem], load: Load, *, most: int,
    seconds: float = math.inf, confidence: float = 0.95, progress: Progress | None = None, seed: int = 0,
) -> tuple[TimedSpeeds[Setting], dict[Setting, Seen]]:  # fmt: skip
    """Returns the speeds of settings that answer the same requests in turn, and what else was seen of each.

    With a rate, a speed is that of a request, from its arrival to its end. A server that is started for each value
    answers many pieces before it is started for the next one.

    Args:
        most: Turns at most.
        seconds: After these no further turn begins, unless there are too few for an interval.
        seed: Of the order and of arrivals.

    Raises:
        UsageError: There are too few problems.
    """
    warm_up, *work = pieces(problems, load.at_once)
    turns, order = min(most, len(work)), Random(seed)
    found: dict[tuple[int, Setting], Piece] = {}
    began, seen = time.monotonic(), {setting: Seen() for setting in settings}

    def take(setting: Setting, piece: Sequence[Problem], number: int) -> Piece:
        way = engine.served.at(value_of(engine.served.description, setting))
        bodies = [engine.body(prompt, engine.decoding.seed) for prompt in prompts_of(piece)]
        time.sleep(_LONG_REST if engine.served.is_switched else _REST)
        return send(way, bodies, load, seed + number)

    with (progress or Silent()).step(f"timing, {load}", turns) as advance:
        for block in _blocks(turns, engine.served.is_started):
            for setting, numbers in _order(settings, block, order, engine.served.is_started):
                take(setting, warm_up, -1) if engine.served.is_started or not found else None
                for number in numbers:
                    found[number, setting] = piece = take(setting, work[number], number)
                    seen[setting].add(piece)
            advance(len(block))
            if time.monotonic() - began > seconds and block[-1] + 1 >= _FEWEST:
                break
    done = [number for number in range(turns) if all((number, setting) in found for setting in settings)]
    run = TimedRun(
        np.array(done, np.int64), {s: np.array([found[n, s].tokens(load) for n in done]) for s in settings},
        {"wall": {s: np.array([found[n, s].taken(load) for n in done]) for s in settings}},
    )  # fmt: skip
    answers = len(warm_up) / load.streams if load.rate is None else 1.0
    return TimedSpeeds([run], len(done) * len(warm_up), confidence, answers=answers), seen


def _blocks(turns: int, started: bool) -> Iterator[range]:
    """The turns that go before another setting's: one, or many where that takes a start of the server."""
    size = math.ceil(turns / _BLOCKS) if started else 1
    return (range(at, min(at + size, turns)) for at in range(0, turns, size))


def _order(
    settings: Sequence[Setting], block: range, order: Random, started: bool
) -> Iterator[tuple[Setting, Sequence[int]]]:
    """The settings of a block in the order of their turns: drawn, or where that takes starts there and back again."""
    if started:
        return ((setting, block) for setting in (settings if block.start == 0 else reversed(settings)))
    return ((setting, block) for setting in order.sample(list(settings), len(settings)))
