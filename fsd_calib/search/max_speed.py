"""The goal to be as fast as a certificate allows: where to try next, and what to put to the test.

Knows prospects. What a setting must show is the bar's, and how likely it is to pass where it was measured is told by a
function it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fsd_calib.measuring.configuration import Configuration
from fsd_calib.measuring.evaluator import Evaluator
from fsd_calib.measuring.measurement import Measurement
from fsd_calib.search import outcome_shifts
from fsd_calib.search.bar import Bar
from fsd_calib.search.candidates import contenders, sequence
from fsd_calib.search.forecast import Forecast, placed
from fsd_calib.search.history import History, Seen, Tried
from fsd_calib.search.objective import Assessment, PairedMeasurement
from fsd_calib.search.prospects import Prospects, every, settings_at
from fsd_calib.search.space import Point, Space

Chance = Callable[[Measurement, Measurement], float]
"""(fuzzy, target) on the same problems -> the chance to pass the certificate if they show the truth."""

_DEVIATIONS = 2.5  # a look errs once in 160 on one side, and only about thresholds that are hardly better or worse
_GAIN = 0.001  # of the speed expected: what a trial must be expected to add


@dataclass(frozen=True)
class MaxSpeed:
    """Feasible where the chance of passing is at least `wanted`; the faster, the better.

    Args:
        lossless: forecast tokens/s of lossless decoding, which needs no certificate.
    """

    chance: Chance
    asked: str
    bar: Bar
    lossless: float
    wanted: float = 0.8

    @lru_cache(maxsize=4)  # noqa: B019  # the loop, the sampler and every arm that was not tried ask the same
    def propose(self, history: History, space: Space, forecast: Forecast) -> Point | None:
        """Where a trial is expected to add most to the speed that can be certified. What others try is taken to show
        what is expected of it."""
        settings = every(space, forecast).corrected(history.tried, forecast)
        prospects = Prospects(settings, self._known(history), self.bar, self.lossless)
        taken = {Point(t.arm, t.logit_share) for t in history.tried}.union(history.running)
        new = np.array([settings.point(i) not in taken for i in range(len(settings))])  # a trial again shows the same
        improvements = np.where(new, prospects.improvements, 0.0)
        at = int(improvements.argmax())
        return settings.point(at) if improvements[at] >= _GAIN * prospects.expected.max() else None

    def why_not(self, arm: Configuration, history: History, space: Space, forecast: Forecast) -> str:
        if self.propose(history, space, forecast) is not None:
            return "the trials ran out"
        return f"no trial of it was expected to add {_GAIN:.1%} to the speed that can be certified"

    def judge(self, seen: PairedMeasurement, forecast: Forecast) -> Assessment:
        chance = self.chance(seen.fuzzy, seen.target)
        return Assessment(forecast.measured(seen.fuzzy), self.wanted - chance, self._is_settled(seen, chance))

    def _is_settled(self, seen: PairedMeasurement, chance: float) -> bool:
        """Whether the problems still to come would have to be unusually good or bad to turn the decision."""
        fuzzy, target = seen.fuzzy, seen.target
        more, fewer = outcome_shifts.swing(outcome_shifts.flips(fuzzy, target), fuzzy.problems, seen.whole, _DEVIATIONS)
        if chance >= self.wanted:
            return self.chance(outcome_shifts.worse(fuzzy, target, more), target) >= self.wanted
        return self.chance(outcome_shifts.better(fuzzy, target, fewer), target) < self.wanted

    def freeze(
        self, tried: Sequence[Tried], space: Space, evaluator: Evaluator, target: Measurement, forecast: Forecast
    ) -> list[Configuration]:
        """The sequence with the highest certified speed to be expected. Where none is worth a test, the likeliest of
        those that are faster than lossless decoding, as an estimate; empty where none is."""
        if not tried:
            return []
        prospects = contenders(tried, space, evaluator, target, forecast, self.bar, self.lossless)
        faster = np.flatnonzero(prospects.settings.speeds > self.lossless).tolist()
        chosen = sequence(prospects) or sorted(faster, key=lambda i: -prospects.chances[i])[:1]
        return [placed(forecast, prospects.settings.point(i)) for i in chosen]

    def _known(self, history: History) -> list[Seen]:
        """What finished trials showed, and running ones are expected to show."""
        seen = [t.seen for t in history.tried]
        if not history.running:
            return seen
        settings = settings_at(history.running)
        expected = Prospects(settings, seen, self.bar, self.lossless)
        changes = (expected.believed.mean - self.bar.lossless) / self.bar.per_change
        return seen + [
            Seen(*point, change, flipped, self.bar.tuning)
            for point, change, flipped in zip(history.running, changes.tolist(), expected.flipped.tolist(), strict=True)
        ]
