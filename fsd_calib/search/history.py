"""What a search knows so far: what was tried, and what others are trying. Knows no ledger and decides nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from fsd_calib.measuring.configuration import Configuration
from fsd_calib.search.space import Point, kin


class Seen(NamedTuple):
    """What a setting showed on the first `problems` of the tuning part. change: its accuracy less the target's there.
    flipped: the variance of that difference for one problem; losses plus gains where a problem has one seed."""

    arm: Configuration
    logit_share: float
    change: float
    flipped: float
    problems: int


@dataclass(frozen=True)
class Tried:
    """A finished trial, as it was judged on the first `problems` of the tuning part.

    value: what the goal maximises. shortfall: feasible where it is <= 0. tokens_per_second: the forecast, by the
    rounds of those problems. lost, gained: shares of them that the target alone solved and this did not, and the other
    way round, each the mean over seeds. flipped: see `Seen`.
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
    def seen(self) -> Seen:
        return Seen(self.arm, self.logit_share, self.gained - self.lost, self.flipped, self.problems)

    @property
    def feasible(self) -> bool:
        return self.shortfall <= 0

    @property
    def arm(self) -> Configuration:
        return self.configuration.arm


@dataclass(frozen=True)
class History:
    """tried: in the order of their numbers. running: of other workers that are alive."""

    tried: tuple[Tried, ...] = ()
    running: tuple[Point, ...] = ()

    def of(self, arm: Configuration) -> list[Tried]:
        return [t for t in self.tried if t.arm == arm]

    def kin_of(self, arm: Configuration) -> list[Tried]:
        """Of the arm itself and of those that only draft otherwise."""
        return [t for t in self.tried if kin(t.arm, arm)]

    def running_in(self, arm: Configuration) -> list[float]:
        return [p.logit_share for p in self.running if p.arm == arm]
