"""The goal to be as accurate as a speed allows: in every family the smallest threshold that is fast enough.

Knows tokens/s, by the rounds that were decoded and the cost model. Knows no certificate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fsd_calib.measuring.configuration import Configuration
from fsd_calib.measuring.evaluator import Evaluator
from fsd_calib.measuring.measurement import Measurement
from fsd_calib.search.forecast import Forecast, first_as_fast
from fsd_calib.search.history import History, Tried
from fsd_calib.search.objective import Assessment, PairedMeasurement, retention
from fsd_calib.search.space import Point, Space

_MARGIN = 1.03  # over what is wanted, because timings are noisy
_AIMED = 1.004  # above what is needed, so that a forecast that errs a little does not fall short
_ENOUGH = 1.01  # a trial that is no faster than this, beside what it must be, ends its arm
_NARROW = 0.01  # in logit(u): no threshold in between tells anything new
_SLACK = 0.1  # in logit(u): kin that reach the speed so little earlier are no more accurate
_CLIPPED = 0.1  # of a bracket: a forecast is believed no closer to its ends
_DEVIATIONS = 2.5


@dataclass(frozen=True)
class MaxAccuracy:
    """Feasible from 3 % above `wanted` tokens/s on; the higher the retention, the better."""

    wanted: float

    @property
    def asked(self) -> str:
        return f"at least {self.wanted:g} tokens/s"

    @property
    def needed(self) -> float:
        return _MARGIN * self.wanted

    def propose(self, history: History, space: Space, forecast: Forecast) -> Point | None:
        """In each family the arm that was begun, else the one that replay expects to need the smallest share."""
        points = [p for family in space.families if (p := self._of_family(family, history, forecast)) is not None]
        free = [p for p in points if not history.running_in(p.arm)]
        return min(free, key=lambda p: not history.of(p.arm), default=None)

    def why_not(self, arm: Configuration, history: History, space: Space, forecast: Forecast) -> str:
        if self._aim(arm, history, forecast) is None:
            return f"by replay no threshold of it reaches {self.needed:.4g} tokens/s"
        if self._ends(arm, history, forecast) is not None:
            return "the trials ran out"
        return "by replay it needs no smaller threshold for that speed than another draft length does"

    def _of_family(self, family: list[Configuration], history: History, forecast: Forecast) -> Point | None:
        aims = {arm: aim for arm in family if (aim := self._aim(arm, history, forecast)) is not None}
        order = sorted(aims, key=lambda arm: (not history.of(arm) and not history.running_in(arm), aims[arm]))
        for arm in order:
            ends = self._ends(arm, history, forecast)
            if ends is not None:
                return Point(arm, _inside(aims[arm], *ends) if history.of(arm) else aims[arm])
        return None

    def _aim(self, arm: Configuration, history: History, forecast: Forecast) -> float | None:
        """Where the arm should be just fast enough, if replay errs as it did for the family's last trial."""
        known = history.kin_of(arm) or history.tried
        errs = known[-1].tokens_per_second / forecast.tokens_per_second(known[-1].configuration) if known else 1.0
        return first_as_fast(forecast, arm, _AIMED * self.needed / errs)

    def _ends(self, arm: Configuration, history: History, forecast: Forecast) -> tuple[float, float] | None:
        """The largest share known to be too slow and the smallest known to do, or the scale's ends; None: done."""
        own, kin = history.of(arm), history.kin_of(arm)
        enough = min((t for t in own if t.feasible), key=lambda t: t.logit_share, default=None)
        high = forecast.highest if enough is None else enough.logit_share
        low = max((t.logit_share for t in own if not t.feasible and t.logit_share < high), default=forecast.lowest)
        if high - low <= _NARROW or (enough and enough.tokens_per_second <= _ENOUGH * self.needed):
            return None
        rival = min((t.logit_share for t in kin if t.feasible and t.arm != arm), default=math.inf)
        aim = self._aim(arm, history, forecast)
        return None if not own and aim is not None and aim > rival - _SLACK else (low, high)

    def judge(self, seen: PairedMeasurement, forecast: Forecast) -> Assessment:
        speed = forecast.measured(seen.fuzzy)
        shortfall = self.needed - speed
        error = speed * _relative_error(seen.fuzzy) * math.sqrt(1 - seen.fuzzy.problems / seen.whole)
        return Assessment(retention(seen.fuzzy, seen.target), shortfall, abs(shortfall) >= _DEVIATIONS * error)

    def freeze(
        self, tried: Sequence[Tried], space: Space, evaluator: Evaluator, target: Measurement, forecast: Forecast
    ) -> list[Configuration]:
        """One: of each arm's smallest threshold that is fast enough the most accurate; where none is, the fastest."""
        smallest: dict[Configuration, Tried] = {}
        for t in sorted((t for t in tried if t.feasible), key=lambda t: -t.logit_share):
            smallest[t.arm] = t
        if not smallest:
            return [t.configuration for t in sorted(tried, key=lambda t: -t.tokens_per_second)[:1]]
        whole = [evaluator.measure(t.configuration) for t in smallest.values()]
        enough = [m for m in whole if forecast.measured(m) >= self.needed] or whole
        return [max(enough, key=lambda m: (m.accuracy, forecast.measured(m))).configuration]


def _inside(aim: float, low: float, high: float) -> float:
    room = _CLIPPED * (high - low)
    return min(max(aim, low + room), high - room)


def _relative_error(fuzzy: Measurement) -> float:
    """Standard error of tokens a round over itself, as a ratio over problems: Cochran (1977), 6.4."""
    tokens, rounds = np.array([[sum(d.tokens for d in s), sum(d.rounds for d in s)] for s in fuzzy.decodings]).T
    if len(tokens) < 2:
        return math.inf
    residuals = tokens - tokens.sum() / rounds.sum() * rounds
    return float(residuals.std(ddof=1) * math.sqrt(len(tokens)) / tokens.sum())
