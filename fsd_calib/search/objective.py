"""The interface between a search and its objective: what trials showed, and what an objective makes of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from fsd_calib.measuring.evaluator import Evaluator
from fsd_calib.measuring.measurement import Measurement
from fsd_calib.search.forecast import Forecast
from fsd_calib.search.space import Point, Space, same_family
from fsd_decoding.profile.setting import Setting


class Observation(NamedTuple):
    """The result of a setting on the first `problems` of the tuning part.

    Attributes:
        change: Its accuracy minus the target's on the same problems.
        flipped: The variance of that difference for one problem; losses plus gains where a problem has one seed.
    """

    arm: Setting
    logit_share: float
    change: float
    flipped: float
    problems: int


@dataclass(frozen=True)
class FinishedTrial:
    """A finished trial on the first `problems` of the tuning part.

    Attributes:
        value: What the objective maximises.
        shortfall: The constraint; feasible where <= 0.
        tokens_per_second: Computed from the rounds of those problems.
        lost: Share of problems that the target solved and this setting did not, averaged over seeds.
        gained: Share of problems that this setting solved and the target did not, averaged over seeds.
        flipped: See `Observation`.
    """

    setting: Setting
    logit_share: float
    value: float
    shortfall: float
    tokens_per_second: float
    retention: float
    lost: float
    gained: float
    problems: int
    flipped: float

    @property
    def observation(self) -> Observation:
        return Observation(self.arm, self.logit_share, self.gained - self.lost, self.flipped, self.problems)

    @property
    def feasible(self) -> bool:
        return self.shortfall <= 0

    @property
    def share(self) -> float:
        """The share of drafted tokens that its T accepts along the target's text."""
        return 1 / (1 + math.exp(-self.logit_share))

    @property
    def arm(self) -> Setting:
        return self.setting.arm


@dataclass(frozen=True)
class History:
    """Trials of a study.

    Attributes:
        trials: Finished ones, in the order of their numbers.
        running: Points that other live workers are evaluating.
    """

    trials: tuple[FinishedTrial, ...] = ()
    running: tuple[Point, ...] = ()

    def of(self, arm: Setting) -> list[FinishedTrial]:
        return [t for t in self.trials if t.arm == arm]

    def of_family(self, arm: Setting) -> list[FinishedTrial]:
        """Returns the trials of the arm and of those that differ in draft length only."""
        return [t for t in self.trials if same_family(t.arm, arm)]

    def running_in(self, arm: Setting) -> list[float]:
        return [p.logit_share for p in self.running if p.arm == arm]


class Assessment(NamedTuple):
    """An objective's result for one trial.

    Attributes:
        value: To be maximised.
        shortfall: The constraint; feasible where <= 0.
        settled: Whether the rest of the tuning part is unlikely to change the feasibility.
    """

    value: float
    shortfall: float
    settled: bool


class Objective(Protocol):
    """Proposes, assesses and freezes settings."""

    @property
    def description(self) -> str:
        """A text that differs between searches whose studies must not be mixed."""
        ...

    def propose(self, history: History, space: Space, forecast: Forecast) -> Point | None:
        """Returns the next point to try; None: no further trial is worthwhile.

        Depends on its arguments only, so that a search can resume.
        """
        ...

    def reason_untried(self, arm: Setting, history: History, space: Space, forecast: Forecast) -> str:
        """Returns why an arm was not tried, as part of a sentence."""
        ...

    def assess(self, fuzzy: Measurement, target: Measurement, whole: int, forecast: Forecast) -> Assessment:
        """Returns value and feasibility of a trial on the problems decoded so far, of as many as `whole`.

        Args:
            target: The target alone on the same problems.
        """
        ...

    def freeze(
        self,
        trials: Sequence[FinishedTrial],
        space: Space,
        evaluator: Evaluator,
        target: Measurement,
        forecast: Forecast,
    ) -> list[Setting]:
        """Returns the settings to certify, safest first."""
        ...


def retention(fuzzy: Measurement, target: Measurement) -> float:
    """Returns the setting's accuracy over the target's; 1 where the target solves nothing, since nothing can be
    lost."""
    return fuzzy.accuracy / target.accuracy if target.accuracy else 1.0
