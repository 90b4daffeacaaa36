"""All settings there are, with what is known of each: how fast it is expected to be, and how likely to be certified.

Knows forecasts, beliefs and the bar. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain

import numpy as np
from numpy.typing import NDArray
from sklearn.isotonic import IsotonicRegression

from fsd_calib.measuring.configuration import Configuration
from fsd_calib.search.bar import Bar, Floats
from fsd_calib.search.belief import Belief, Believed, Points
from fsd_calib.search.forecast import Forecast, placed
from fsd_calib.search.history import Seen, Tried
from fsd_calib.search.space import Point, Space

_STEP = 0.125  # in logit(u), between settings that are looked at
_TYPICAL_FLIPPED = 0.03  # where nothing was tried
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(9)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()


@dataclass(frozen=True, eq=False)
class Settings:
    """Arms and logit(u), with forecast tokens/s."""

    arms: Sequence[Configuration]
    logit_shares: Floats
    speeds: Floats

    def __len__(self) -> int:
        return len(self.arms)

    def point(self, index: int) -> Point:
        return Point(self.arms[index], float(self.logit_shares[index]))

    def chosen(self, which: NDArray[np.intp]) -> Settings:
        return Settings([self.arms[i] for i in which.tolist()], self.logit_shares[which], self.speeds[which])

    def corrected(self, tried: Sequence[Tried], forecast: Forecast) -> Settings:
        """With forecasts as trials of the same family showed them to err."""
        errors: dict[Configuration, list[float]] = {}
        for t in tried:
            error = t.tokens_per_second / forecast.tokens_per_second(t.configuration)
            errors.setdefault(t.arm.family, []).append(error)
        errs = np.array([np.mean(errors.get(arm.family, [1.0])) for arm in self.arms])
        return Settings(self.arms, self.logit_shares, self.speeds * errs)


def settings_at(points: Iterable[Point], speeds: Sequence[float] | None = None) -> Settings:
    """Of their own; without speeds where none matter."""
    some = list(points)
    shares = np.array([point.logit_share for point in some])
    return Settings([p.arm for p in some], shares, np.zeros(len(some)) if speeds is None else np.array(speeds))


@lru_cache(maxsize=4)  # a search asks before every trial
def every(space: Space, forecast: Forecast) -> Settings:
    """Of all arms, on one grid of logit(u); of shares that are one threshold, as few traces have, the first."""
    shares = np.arange(forecast.lowest, forecast.highest, _STEP).tolist()
    points = [Point(arm, at) for arm in chain.from_iterable(space.families) for at in shares]
    apart = {placed(forecast, point): point for point in reversed(points)}
    speeds = [forecast.tokens_per_second(configuration) for configuration in reversed(apart)]
    return settings_at(reversed(apart.values()), speeds)


class Prospects:
    """Of settings, from what trials showed.

    Args:
        lossless: tokens/s of lossless decoding, which needs no certificate.
    """

    def __init__(self, settings: Settings, seen: Sequence[Seen], bar: Bar, lossless: float) -> None:
        self.settings, self.lossless, self.seen, self.bar = settings, lossless, seen, bar
        arms = chain(settings.arms, (s.arm for s in seen))
        self._policies = list(dict.fromkeys(arm.policy for arm in arms))

    @cached_property
    def believed(self) -> Believed:
        found = [np.empty(len(self.settings)) for _ in Believed._fields]
        for which, belief in self._groups:
            for whole, part in zip(found, belief.about(self._points(which)), strict=True):
                whole[which] = part
        return Believed(*found)

    @cached_property
    def flipped(self) -> Floats:
        """Of each setting, as its neighbours in logit(u) show it."""
        found = np.empty(len(self.settings))
        for group, which in self._grouped.items():
            found[which] = _flipped(self._seen_of(group), self.settings.logit_shares[which])
        return found

    @cached_property
    def chances(self) -> Floats:
        """Of passing the certificate, as far as anything is known."""
        return self.bar.chance(self.believed.mean, self.believed.deviation, self.flipped)

    @property
    def expected(self) -> Floats:
        """Tokens/s, where a setting alone is put to the test and lossless decoding is what is left."""
        return self.lossless + self._gains * self.chances

    @cached_property
    def improvements(self) -> Floats:
        """How much more than now is to be expected, once a setting was tried: the expected improvement."""
        mean, deviation, learned = self.believed
        left = np.sqrt((deviation**2 - learned**2).clip(0))
        best = self.expected.max()
        after = [
            self.lossless + self._gains * self.bar.chance(mean + node * learned, left, self.flipped) for node in _NODES
        ]
        return np.asarray(_WEIGHTS @ np.maximum(after, best) - best)

    def covariances(self) -> tuple[Floats, Floats]:
        """Of what is believed, and of what the certification part shows beside the truth, between settings. Those of
        different divergences are taken for independent of each other."""
        size = len(self.settings)
        believed, luck = np.zeros((size, size)), np.zeros((size, size))
        deviation = self.bar.certified_deviation(self.flipped)
        for which, belief in self._groups:
            points, block = self._points(which), np.ix_(which, which)
            believed[block] = belief.covariance(points)
            luck[block] = belief.shared_luck(points) * np.outer(deviation[which], deviation[which])
        if self.bar.absolute:  # nearly all of it is the target's own, which all settings share
            luck = np.outer(deviation, deviation)
        return believed + self.bar.common_deviation**2, luck

    @property
    def needed(self) -> Floats:
        return self.bar.needed(self.flipped)

    @property
    def _gains(self) -> Floats:
        return (self.settings.speeds - self.lossless).clip(0)

    @cached_property
    def _grouped(self) -> dict[Configuration, NDArray[np.intp]]:
        groups: dict[Configuration, list[int]] = {}
        for i, arm in enumerate(self.settings.arms):
            groups.setdefault(_group(arm), []).append(i)
        return {group: np.array(which) for group, which in groups.items()}

    @cached_property
    def _groups(self) -> list[tuple[NDArray[np.intp], Belief]]:
        return [(which, self._belief(self._seen_of(group))) for group, which in self._grouped.items()]

    def _seen_of(self, group: Configuration) -> list[Seen]:
        return [s for s in self.seen if _group(s.arm) == group]

    def _belief(self, seen: Sequence[Seen]) -> Belief:
        shares = np.array([s.logit_share for s in seen])
        points = Points([s.arm for s in seen], shares, _flipped(seen, shares))
        changes, problems = np.array([s.change for s in seen]), np.array([s.problems for s in seen])
        return Belief(points, self.bar.shown(changes), problems, self.bar, self._policies)

    def _points(self, which: NDArray[np.intp]) -> Points:
        some = self.settings.chosen(which)
        return Points(some.arms, some.logit_shares, self.flipped[which])


def _group(arm: Configuration) -> Configuration:
    """What one belief is about: everything but draft length and policy."""
    return Configuration(arm.rule, arm.divergence, 1, draft=arm.draft)


def _flipped(seen: Sequence[Seen], at: Floats) -> Floats:
    """More flips the looser a setting is; beyond what was tried as many as at the nearest."""
    if not seen:
        return np.full_like(at, _TYPICAL_FLIPPED)
    problems = np.array([s.problems for s in seen])
    rates = np.array([s.flipped for s in seen]) + 1 / problems
    shares = np.array([s.logit_share for s in seen])
    return np.asarray(IsotonicRegression(out_of_bounds="clip").fit(shares, rates, problems).predict(at))
