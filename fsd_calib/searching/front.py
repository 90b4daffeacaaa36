"""The goal to see what accuracy costs in speed, and the other way round. Knows neither a wish nor a certificate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fsd_calib.measuring.bench import Bench
from fsd_calib.measuring.configuration import Configuration
from fsd_calib.measuring.measurement import Measurement
from fsd_calib.searching.forecast import Forecast, speed_at
from fsd_calib.searching.goal import Evidence, Judged, retention
from fsd_calib.searching.history import History, Tried
from fsd_calib.searching.space import Point, Space, logit

_FROM = logit(0.7)
_COARSE = (1 / 3, 2 / 3)  # of the range of logit(u), for every rule and divergence
_FINE = (1 / 2, 1 / 6, 5 / 6, 0.0, 1.0)  # for those that are on the front then
_NARROW = 0.01  # in logit(u)


@dataclass(frozen=True)
class Front:
    """Thresholds spread in logit(u), each at the draft length that replay finds fastest there.

    Everything is feasible, and every trial takes the whole tuning part: points are compared with one another.
    """

    asked: str = "the front"

    def propose(self, history: History, space: Space, forecast: Forecast) -> Point | None:
        """Coarse to fine, so that a search that ends early has seen the whole range."""
        taken = [Point(t.arm, t.logit_share) for t in history.tried] + list(history.running)
        coarse = self._plan(_COARSE, space.families, forecast)
        seen = [t for t in history.tried if any(_same(Point(t.arm, t.logit_share), p) for p in coarse)]
        ahead = [family for family in space.families if any(t.arm in family for t in nondominated(seen))]
        plan = coarse + self._plan(_FINE, ahead, forecast)
        return next((p for p in plan if not any(_same(p, other) for other in taken)), None)

    def _plan(
        self, shares: Sequence[float], families: Sequence[Sequence[Configuration]], forecast: Forecast
    ) -> list[Point]:
        start = max(forecast.lowest, min(_FROM, forecast.highest))
        places = [start + share * (forecast.highest - start) for share in shares]
        return [
            Point(max(family, key=lambda arm: speed_at(forecast, arm, at)), at) for at in places for family in families
        ]

    def why_not(self, arm: Configuration, history: History, space: Space, forecast: Forecast) -> str:
        return "by replay another draft length is faster at every threshold, or the trials ran out"

    def judge(self, seen: Evidence, forecast: Forecast) -> Judged:
        return Judged(retention(seen.fuzzy, seen.target), 0.0, settled=False)

    def freeze(
        self, tried: Sequence[Tried], space: Space, bench: Bench, target: Measurement, forecast: Forecast
    ) -> list[Configuration]:
        return [t.configuration for t in nondominated(tried)]


def nondominated(tried: Iterable[Tried]) -> list[Tried]:
    """Those that no other beats in retention without being slower, most accurate first."""
    front: list[Tried] = []
    for t in sorted(tried, key=lambda t: (-t.retention, -t.tokens_per_second)):
        if not front or t.tokens_per_second > front[-1].tokens_per_second:
            front.append(t)
    return front


def _same(one: Point, other: Point) -> bool:
    return one.arm == other.arm and abs(one.logit_share - other.logit_share) <= _NARROW
