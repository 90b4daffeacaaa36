"""The state of a search: finished trials, and the trials that other workers are running."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from fsd_calib.engines.configuration import Configuration
from fsd_calib.search.space import Point, same_family


class Observation(NamedTuple):
    """The result of a setting on the first `problems` of the tuning part.

    Attributes:
        change: Its accuracy minus the target's on the same problems.
        flipped: The variance of that difference for one problem; losses plus gains where a problem has one seed.
    """

    arm: Configuration
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

    configuration: Configuration
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
    def arm(self) -> Configuration:
        return self.configuration.arm


@dataclass(frozen=True)
class History:
    """Trials of a study.

    Attributes:
        trials: Finished ones, in the order of their numbers.
        running: Points that other live workers are evaluating.
    """

    trials: tuple[FinishedTrial, ...] = ()
    running: tuple[Point, ...] = ()

    def of(self, arm: Configuration) -> list[FinishedTrial]:
        return [t for t in self.trials if t.arm == arm]

    def of_family(self, arm: Configuration) -> list[FinishedTrial]:
        """Returns the trials of the arm and of those that differ in draft length only."""
        return [t for t in self.trials if same_family(t.arm, arm)]

    def running_in(self, arm: Configuration) -> list[float]:
        return [p.logit_share for p in self.running if p.arm == arm]
