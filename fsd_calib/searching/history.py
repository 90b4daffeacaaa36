"""What a search knows so far: what was tried, and what others are trying. Knows no ledger and decides nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fsd_calib.measuring.configuration import Configuration
from fsd_calib.searching.space import Point, kin


@dataclass(frozen=True)
class Tried:
    """A finished trial, as it was judged on the first `problems` of the tuning part.

    value: what the goal maximises. shortfall: feasible where it is <= 0. tokens_per_second: the forecast, by the
    rounds of those problems. lost, gained: shares of them that the target alone solved and this did not, and the other
    way round, each the mean over seeds.
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


def highest_success(tried: Iterable[Tried]) -> float | None:
    """The largest feasible share. What failed below it was a dip: quality need not fall steadily with T."""
    return max((t.logit_share for t in tried if t.feasible), default=None)


def lowest_failure(tried: Iterable[Tried]) -> float | None:
    """The smallest infeasible share above all feasible ones."""
    tried = list(tried)
    success = highest_success(tried)
    failed = (t.logit_share for t in tried if not t.feasible and (success is None or t.logit_share > success))
    return min(failed, default=None)
