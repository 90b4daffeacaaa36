"""The goal to be as fast as a certificate allows: where to try next, and what to put to the test.

Knows prospects. What a setting must show is the bar's, and how likely it is to pass where it was measured is told by a
function it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fsd_calib.measuring.bench import Bench
from fsd_calib.measuring.configuration import Configuration
from fsd_calib.measuring.measurement import Measurement
from fsd_calib.searching import luck
from fsd_calib.searching.bar import Bar
from fsd_calib.searching.forecast import Forecast
from fsd_calib.searching.goal import Evidence, Judged
from fsd_calib.searching.history import History, Seen, Tried
from fsd_calib.searching.ladder import sequence
from fsd_calib.searching.prospects import Prospects, Settings, every
from fsd_calib.searching.space import Point, Space

Chance = Callable[[Measurement, Measurement], float]
"""(fuzzy, target) on the same problems -> the chance to pass the certificate if they show the truth."""

_DEVIATIONS = 2.5  # a look errs once in 160 on one side, and only about thresholds that are hardly better or worse
_GAIN = 0.001  # of the speed expected: what a trial must be expected to add
_CHANCES = (0.97, 0.9, 0.8, 0.65, 0.5, 0.3)  # of passing: the fastest setting that has each is measured whole
_ROUNDS = 2  # of such measuring, each with what the one before showed
_ALIKE = 0.995  # of a speed: a setting that was measured already is as good as one so little faster


@dataclass(frozen=True)
class KeepAccuracy:
    """Feasible where the chance of passing is at least `wanted`; the faster, the better.

    Args:
        lossless: forecast tokens/s of lossless decoding, which needs no certificate.
    """

    chance: Chance
    asked: str
    bar: Bar
    lossless: float
    wanted: float = 0.8

    def propose(self, history: History, space: Space, forecast: Forecast) -> Point | None:
        """Where a trial is expected to add most to the speed that can be certified. What others try is taken to show
        what is expected of it."""
        settings = every(space, forecast)
        prospects = self._prospects(settings, history)
        at = int(prospects.improvements.argmax())
        if prospects.improvements[at] < _GAIN * prospects.expected.max():
            return None
        return settings.point(at)

    def why_not(self, arm: Configuration, history: History, space: Space, forecast: Forecast) -> str:
        if self.propose(history, space, forecast) is not None:
            return "the trials ran out"
        return f"no trial of it was expected to add {_GAIN:.1%} to the speed that can be certified"

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
        self, tried: Sequence[Tried], space: Space, bench: Bench, target: Measurement, forecast: Forecast
    ) -> list[Configuration]:
        """The sequence with the highest certified speed to be expected, of settings that were measured on the whole
        tuning part; some are measured for it. Where none is likely enough, the likeliest of those that are faster than
        lossless decoding, as an estimate."""
        if not tried:
            return []
        whole = self._measured(tried, space, bench, target, forecast)
        arms, shares = [c.arm for c in whole], [seen.logit_share for seen in whole.values()]
        speeds = [forecast.measured(bench.measure(c)) for c in whole]
        contenders = Settings(arms, np.array(shares), np.array(speeds))
        seen = [*whole.values(), *(t.seen for t in tried if t.configuration not in whole)]
        prospects = Prospects(contenders, seen, self.bar, self.lossless)
        chosen = sequence(prospects) or [
            int(np.where(contenders.speeds > self.lossless, prospects.chances, -1).argmax())
        ]
        configurations = list(whole)
        return [configurations[i] for i in chosen]

    def _measured(
        self, tried: Sequence[Tried], space: Space, bench: Bench, target: Measurement, forecast: Forecast
    ) -> dict[Configuration, Seen]:
        """On the whole tuning part: what was tried on it, and the fastest setting at each of some chances."""
        whole = {t.configuration: t.seen for t in tried if t.problems == target.problems}
        for _ in range(_ROUNDS):
            seen = [*whole.values(), *(t.seen for t in tried if t.configuration not in whole)]
            prospects = Prospects(corrected(every(space, forecast), tried, forecast), seen, self.bar, self.lossless)
            for point in _fastest(prospects, whole.values()):
                configuration = point.arm.at(forecast.threshold(point.arm, point.logit_share))
                fuzzy = bench.measure(configuration)
                whole[configuration] = shown(point, fuzzy, target)
        return whole

    def _prospects(self, settings: Settings, history: History) -> Prospects:
        seen = [t.seen for t in history.tried]
        if not history.running:
            return Prospects(settings, seen, self.bar, self.lossless)
        running = Settings([p.arm for p in history.running], np.array([p.logit_share for p in history.running]),
                           np.zeros(len(history.running)))  # fmt: skip
        expected = Prospects(running, seen, self.bar, self.lossless)
        change = (expected.believed.mean - self.bar.lossless) / self.bar.per_change
        guessed = [
            Seen(p.arm, p.logit_share, c, f, self.bar.tuning)
            for p, c, f in zip(history.running, change.tolist(), expected.flipped.tolist(), strict=True)
        ]
        return Prospects(settings, [*seen, *guessed], self.bar, self.lossless)


def shown(point: Point, fuzzy: Measurement, target: Measurement) -> Seen:
    flipped = luck.flips(fuzzy, target) / fuzzy.problems
    return Seen(point.arm, point.logit_share, fuzzy.accuracy - target.accuracy, flipped, fuzzy.problems)


def corrected(settings: Settings, tried: Sequence[Tried], forecast: Forecast) -> Settings:
    """Forecasts as trials of the same divergence showed them to err."""
    errors: dict[Configuration, list[float]] = {}
    for t in tried:
        errors.setdefault(t.arm.family, []).append(t.tokens_per_second / forecast.tokens_per_second(t.configuration))
    errs = np.array([float(np.mean(errors.get(arm.family, [1.0]))) for arm in settings.arms])
    return Settings(settings.arms, settings.logit_shares, settings.speeds * errs)


def _fastest(prospects: Prospects, known: Iterable[Seen]) -> list[Point]:
    """At each chance of passing the fastest setting that has it, unless what is known is as good."""
    settings, found = prospects.settings, []
    have = {(s.arm, s.logit_share) for s in known}
    for chance in _CHANCES:
        likely = np.flatnonzero((prospects.chances >= chance) & (settings.speeds > prospects.lossless))
        if not len(likely):
            continue
        as_good = [i for i in likely if settings.speeds[i] >= _ALIKE * settings.speeds[likely].max()]
        if not any((settings.arms[i], float(settings.logit_shares[i])) in have for i in as_good):
            found.append(settings.point(max(as_good, key=lambda i: prospects.chances[i])))
    return list(dict.fromkeys(found))
