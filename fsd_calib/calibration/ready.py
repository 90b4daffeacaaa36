"""What a calibration starts its long work from, whatever its engine tells: search, test and timing need no more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from fsd_calib.calibration.plan import Plan
from fsd_calib.calibration.run_facts import RunFacts, first_rival
from fsd_calib.calibration.session import TextSession
from fsd_calib.calibration.timing import Opened, Timed
from fsd_calib.measuring.speed import Speeds
from fsd_calib.options.goal import Goal
from fsd_calib.options.run_config import RunConfig, Timing
from fsd_calib.search.forecast import Forecast
from fsd_calib.search.space import Space
from fsd_decoding.profile.setting import Setting


class SettingTimer(Protocol):
    """Times the settings of one calibration, see `Timer`."""

    @property
    def way(self) -> Timing: ...

    def time(self, settings: Sequence[Setting], opened: Opened | None = None) -> Timed: ...

    def time_single(self, settings: Sequence[Setting], opened: Opened | None) -> Speeds[Setting] | None: ...

    def fastest(self, settings: Sequence[Setting]) -> Setting: ...

    def forecast_of(self, setting: Setting) -> float: ...


@dataclass(frozen=True)
class Ready:
    """The measurements that the search, the certificate and the timing start from.

    Args:
        rivals: the lossless settings that are fastest by forecasts, the fastest first, and what has none.
        fixed: the settings to certify where none are searched.
        seconds: what the preparation took.
    """

    session: TextSession
    goal: Goal
    space: Space
    facts: RunFacts
    forecast: Forecast
    rivals: tuple[Setting, ...]
    timer: SettingTimer
    plan: Plan
    config: RunConfig
    fixed: tuple[Setting, ...] = ()
    seconds: float = 0.0

    @property
    def alone(self) -> Setting:
        return self.session.setting("target")

    @property
    def lossless(self) -> Setting:
        return self.rivals[0].under(self.session.engine.lossless)

    @cached_property
    def rival(self) -> Setting:
        """The fastest of `rivals` by the clock of the run's first process, and no other one for the rest of the run."""
        if self.timer.way == "none" and self.facts.rival is None:
            return self.rivals[0]  # a forecast, and no choice for a process of this run that times
        folder, progress = self.config.path("out"), self.session.progress
        return first_rival(folder, self.facts, lambda: self.timer.fastest(self.rivals), progress)
