"""From what was tried to the sequence that is put to the test. Knows chances of passing, and measures on the tuning
part only: with decodings kept by interval, a threshold between two that were tried costs little.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from fsd_calib.measuring.bench import Bench
from fsd_calib.measuring.configuration import Configuration
from fsd_calib.measuring.measurement import Measurement
from fsd_calib.searching import luck
from fsd_calib.searching.forecast import Forecast, speed_at
from fsd_calib.searching.history import Tried

_CHANCES = (0.95, 0.8, 0.5, 0.2)  # of passing: a rung for each
_SAFE = 0.95  # of passing with a standard deviation more losses than were seen, as small tuning parts often hide
_FEWEST = 3
_MORE = 3  # thresholds at most that are measured for a rung
_STEP = 0.5  # in logit(u), doubled, to below all that was tried
_GAIN = 1.005  # a speed that is worth measuring once more

Chance = Callable[[Measurement, Measurement], float]


class Ladder:
    """Thresholds of the fastest feasible arm, by logit(u), each measured on the whole tuning part when it matters."""

    def __init__(
        self, tried: Sequence[Tried], bench: Bench, target: Measurement, forecast: Forecast, chance: Chance
    ) -> None:
        self._bench, self._target, self._forecast, self._chance = bench, target, forecast, chance
        self._whole = target.problems
        best = max(tried, key=lambda t: (t.feasible, t.tokens_per_second if t.feasible else -t.logit_share))
        self._arm = best.arm
        self._seen = {t.logit_share: t.problems for t in tried if t.arm == best.arm}  # problems measured at each

    def rung(self, passes: Callable[[Measurement, Measurement], bool]) -> float | None:
        """The largest logit(u) found that passes, below all that do not; None: none does."""
        for number in range(_MORE):
            low, high = self._around(passes)
            if high is None or (low is not None and not self._differ(low, high)):
                break
            step = math.ldexp(_STEP, number)
            self._seen[max(high - step, self._forecast.lowest) if low is None else (low + high) / 2] = self._whole
        return self._around(passes)[0]

    def configuration(self, at: float) -> Configuration:
        return self._arm.at(self._forecast.threshold(self._arm, at))

    def sure(self) -> float | None:
        return self.rung(lambda fuzzy, target: self._chance(_unlucky(fuzzy, target), target) >= _SAFE)

    def passing(self, chance: float) -> float | None:
        return self.rung(lambda fuzzy, target: self._chance(fuzzy, target) >= chance)

    def risk(self, at: float) -> tuple[float, float]:
        """To sort by: chances are known to a tenth or so; of such that are alike the smaller share is the safer."""
        fuzzy = self._bench.measure(self.configuration(at), self._seen[at])
        return -round(self._chance(fuzzy, self._target.first(fuzzy.problems)), 1), at

    def tried(self) -> list[float]:
        return sorted(self._seen)

    def _around(self, passes: Callable[[Measurement, Measurement], bool]) -> tuple[float | None, float | None]:
        """The largest that passes, whatever failed below it, and the smallest above it that does not; what passes is
        measured as a whole."""
        above = None
        for at in reversed(self.tried()):
            if self._passes(at, passes):
                return at, above
            above = at
        return None, above

    def _passes(self, at: float, passes: Callable[[Measurement, Measurement], bool]) -> bool:
        """A part that was enough to see that it fails stays enough."""
        fuzzy = self._bench.measure(self.configuration(at), self._seen[at])
        if passes(fuzzy, self._target.first(fuzzy.problems)) and fuzzy.problems < self._whole:
            self._seen[at] = self._whole
            fuzzy = self._bench.measure(self.configuration(at))
        return passes(fuzzy, self._target.first(fuzzy.problems))

    def _differ(self, low: float, high: float) -> bool:
        return speed_at(self._forecast, self._arm, high) > _GAIN * speed_at(self._forecast, self._arm, low)


def rungs(ladder: Ladder) -> list[Configuration]:
    """Safest first, each next one faster. Fewer than three are joined by what was tried and is no riskier."""
    found = {at for at in [ladder.sure(), *map(ladder.passing, _CHANCES)] if at is not None}
    chosen = _rising(sorted(found, key=ladder.risk)) or ladder.tried()[:1]
    if len(chosen) < _FEWEST:
        riskiest = max(map(ladder.risk, chosen))
        more = [at for at in ladder.tried() if at not in chosen and ladder.risk(at) <= riskiest]
        chosen = _rising(sorted(chosen + more[len(chosen) - _FEWEST :], key=ladder.risk))
    return list(dict.fromkeys(ladder.configuration(at) for at in chosen))


def _rising(safest_first: Sequence[float]) -> list[float]:
    """A larger share is faster; a riskier one that is no larger is worth no test."""
    kept: list[float] = []
    for at in safest_first:
        if not kept or at > kept[-1]:
            kept.append(at)
    return kept


def _unlucky(fuzzy: Measurement, target: Measurement) -> Measurement:
    return luck.worse(fuzzy, target, math.ceil(math.sqrt(luck.flips(fuzzy, target) + 1)))
