"""The objective to be as accurate as a required speed allows.

In every family it searches the smallest threshold that is fast enough. Speeds come from the decoded rounds and the cost
model; nothing is certified.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fsd_calib.measuring.evaluator import Evaluator
from fsd_calib.measuring.measurement import Measurement
from fsd_calib.search.forecast import Forecast, least_share_reaching
from fsd_calib.search.objective import Assessment, FinishedTrial, History, retention
from fsd_calib.search.space import Point, Space
from fsd_decoding.profile.setting import Setting

_MARGIN = 1.03  # required speed over the wanted one, because timings are noisy
_AIM = 1.004  # proposed speed over the required one, to allow for small forecast errors
_CLOSE_ENOUGH = 1.01  # a feasible trial no faster than this multiple of the required speed ends its arm
_NARROWEST = 0.01  # in logit(u): thresholds closer than this count as the same
_SLACK = 0.1  # in logit(u): arms of a family closer than this are equally accurate
_CLIPPED = 0.1  # share of a bracket: proposals keep this distance from its ends
_DEVIATIONS = 2.5  # standard errors from the required speed at which a trial stops early


@dataclass(frozen=True)
class MaxAccuracy:
    """Maximises retention; feasible from 3 % above `wanted` tokens/s."""

    wanted: float

    @property
    def description(self) -> str:
        return f"at least {self.wanted:g} tokens/s"

    @property
    def needed(self) -> float:
        return _MARGIN * self.wanted

    def propose(self, history: History, space: Space, forecast: Forecast) -> Point | None:
        """Proposes, of every family, the arm that was begun, else the one with the smallest forecast share."""
        points = [p for family in space.families if (p := self._propose_in(family, history, forecast)) is not None]
        free = [p for p in points if not history.running_in(p.arm)]
        return min(free, key=lambda p: not history.of(p.arm), default=None)

    def reason_untried(self, arm: Setting, history: History, space: Space, forecast: Forecast) -> str:
        if self._aim(arm, history, forecast) is None:
            return f"by replay no threshold of it reaches {self.needed:.4g} tokens/s"
        if self._bracket(arm, history, forecast) is not None:
            return "the trials ran out"
        return "by replay it needs no smaller threshold for that speed than another draft length does"

    def _propose_in(self, family: list[Setting], history: History, forecast: Forecast) -> Point | None:
        aims = {arm: aim for arm in family if (aim := self._aim(arm, history, forecast)) is not None}
        order = sorted(aims, key=lambda arm: (not history.of(arm) and not history.running_in(arm), aims[arm]))
        for arm in order:
            bracket = self._bracket(arm, history, forecast)
            if bracket is not None:
                return Point(arm, _inside(aims[arm], *bracket) if history.of(arm) else aims[arm])
        return None

    def _aim(self, arm: Setting, history: History, forecast: Forecast) -> float | None:
        """Returns where the arm should be just fast enough, with the forecast corrected by the family's last trial."""
        known = history.of_family(arm) or history.trials
        ratio = known[-1].tokens_per_second / forecast.tokens_per_second(known[-1].setting) if known else 1.0
        return least_share_reaching(forecast, arm, _AIM * self.needed / ratio)

    def _bracket(self, arm: Setting, history: History, forecast: Forecast) -> tuple[float, float] | None:
        """Returns the largest share known to be too slow and the smallest known to be fast enough; None: the arm is
        done.

        Without such trials the ends are those of the range.
        """
        own, family = history.of(arm), history.of_family(arm)
        fast_enough = min((t for t in own if t.feasible), key=lambda t: t.logit_share, default=None)
        high = forecast.highest if fast_enough is None else fast_enough.logit_share
        low = max((t.logit_share for t in own if not t.feasible and t.logit_share < high), default=forecast.lowest)
        if high - low <= _NARROWEST or (fast_enough and fast_enough.tokens_per_second <= _CLOSE_ENOUGH * self.needed):
            return None
        rival = min((t.logit_share for t in family if t.feasible and t.arm != arm), default=math.inf)
        aim = self._aim(arm, history, forecast)
        return None if not own and aim is not None and aim > rival - _SLACK else (low, high)

    def assess(self, fuzzy: Measurement, target: Measurement, whole: int, forecast: Forecast) -> Assessment:
        speed = forecast.measured(fuzzy)
        shortfall = self.needed - speed
        error = speed * _relative_error(fuzzy) * math.sqrt(1 - fuzzy.problems / whole)
        return Assessment(retention(fuzzy, target), shortfall, abs(shortfall) >= _DEVIATIONS * error)

    def freeze(
        self,
        trials: Sequence[FinishedTrial],
        space: Space,
        evaluator: Evaluator,
        target: Measurement,
        forecast: Forecast,
    ) -> list[Setting]:
        """Returns one setting: the most accurate of the arms' smallest fast enough thresholds, or the fastest
        trial where none is."""
        smallest: dict[Setting, FinishedTrial] = {}
        for t in sorted((t for t in trials if t.feasible), key=lambda t: -t.logit_share):
            smallest[t.arm] = t
        if not smallest:
            return [t.setting for t in sorted(trials, key=lambda t: -t.tokens_per_second)[:1]]
        whole = [evaluator.measure(t.setting) for t in smallest.values()]
        fast_enough = [m for m in whole if forecast.measured(m) >= self.needed] or whole
        return [max(fast_enough, key=lambda m: (m.accuracy, forecast.measured(m))).setting]


def _inside(aim: float, low: float, high: float) -> float:
    distance = _CLIPPED * (high - low)
    return min(max(aim, low + distance), high - distance)


def _relative_error(fuzzy: Measurement) -> float:
    """Returns the relative standard error of tokens per round, a ratio over problems: Cochran (1977), 6.4."""
    tokens, rounds = np.array([[sum(d.tokens for d in s), sum(d.rounds for d in s)] for s in fuzzy.decodings]).T
    if len(tokens) < 2:
        return math.inf
    residuals = tokens - tokens.sum() / rounds.sum() * rounds
    return float(residuals.std(ddof=1) * math.sqrt(len(tokens)) / tokens.sum())
