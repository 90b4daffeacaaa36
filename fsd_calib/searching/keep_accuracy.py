"""The goal to be as fast as a certificate allows. Knows the chance of passing one, as a function it is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fsd_calib.measuring.bench import Bench
from fsd_calib.measuring.configuration import Configuration
from fsd_calib.measuring.measurement import Measurement
from fsd_calib.searching import luck
from fsd_calib.searching.climbing import Climb
from fsd_calib.searching.forecast import Forecast
from fsd_calib.searching.goal import Evidence, Judged
from fsd_calib.searching.history import History, Tried
from fsd_calib.searching.ladder import Ladder, rungs
from fsd_calib.searching.space import Point, Space

Chance = Callable[[Measurement, Measurement], float]
"""(fuzzy, target) on the same problems -> the chance to pass the certificate if they show the truth."""

_DEVIATIONS = 2.5  # a look errs once in 160 on one side, and only about thresholds that are hardly better or worse


@dataclass(frozen=True)
class KeepAccuracy:
    """Feasible where the chance of passing is at least `wanted`; the faster, the better."""

    chance: Chance
    asked: str
    wanted: float = 0.8

    def propose(self, history: History, space: Space, forecast: Forecast) -> Point | None:
        return Climb(history, space, forecast).next()

    def why_not(self, arm: Configuration, history: History, space: Space, forecast: Forecast) -> str:
        return Climb(history, space, forecast).why_not(arm)

    def judge(self, seen: Evidence, forecast: Forecast) -> Judged:
        chance = self.chance(seen.fuzzy, seen.target)
        return Judged(forecast.measured(seen.fuzzy), self.wanted - chance, self._is_settled(seen, chance))

    def _is_settled(self, seen: Evidence, chance: float) -> bool:
        """Whether the problems still to come would have to be unusually good or bad to turn the decision."""
        fuzzy, target = seen.fuzzy, seen.target
        more, fewer = luck.swing(luck.flips(fuzzy, target), fuzzy.problems, seen.whole, _DEVIATIONS)
        if chance >= self.wanted:
            return self.chance(luck.worse(fuzzy, target, more), target) >= self.wanted
        return self.chance(luck.better(fuzzy, target, fewer), target) < self.wanted

    def freeze(
        self, tried: Sequence[Tried], bench: Bench, target: Measurement, forecast: Forecast
    ) -> list[Configuration]:
        """Three to six where so many thresholds make a difference, safest first, each expected to be faster."""
        return rungs(Ladder(tried, bench, target, forecast, self.chance)) if tried else []
