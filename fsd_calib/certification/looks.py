"""Looks: after how many problems outcomes are tested, at which levels, and the law of what passes.

A test that looks several times has more chances to pass a false claim, so every look has a lower level. Levels follow
from the correlation of what the looks see: sums over more and more problems move as a Brownian motion, whose time is
the share of problems decoded (Lan and DeMets, Biometrika 70, 1983; Jennison and Turnbull, Group Sequential Methods,
2000, chapters 7, 8 and 19).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final, Self

import numpy as np
from numpy.polynomial.legendre import leggauss
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from fsd_calib.certification.outcomes import Counts, Floats

_APART = 0.005  # of the whole part: looks closer than this are one
_SPENT = 4  # power of time in the level spent: early looks pass only what is overwhelming, at little cost to the last
_HOPELESS = 0.02  # times the square of time: what has a smaller chance to pass in the end is given up
_REACH = 9.0  # standard deviations of paths that are followed
LEAST_DRIFT: Final = -7.0
"""The drift down to which the law of what passes is computed."""
_HIGHEST = 40.0  # normal quantile of any level
_NODES, _NODES_A_STEP = 24, 4  # of an integral over paths, and more for each standard deviation of a step


@dataclass(frozen=True)
class Looks:
    """The numbers of problems after which outcomes are tested, rising; the last is the whole part."""

    problems: tuple[int, ...]

    @classmethod
    def evenly(cls, problems: int, number: int, groups: Counts | None = None) -> Self:
        """Returns up to `number` looks at equal distances.

        Args:
            groups: (problems,): the group of each; a look waits until its last problem's group is complete.
        """
        ends = list[int]()
        for look in range(1, number):
            end = problems * look // number
            while groups is not None and 0 < end < problems and groups[end] == groups[end - 1]:
                end += 1
            if end - (ends[-1] if ends else 0) >= max(_APART * problems, 1) and end <= (1 - _APART) * problems:
                ends.append(end)
        return cls((*ends, problems))

    @property
    def whole(self) -> int:
        """The number of problems of the whole part."""
        return self.problems[-1]

    def walk(self, delta: float) -> Walk:
        """Returns the law of what passes by looks that together have size `delta`."""
        return _walk(self.problems, delta)

    def outlook(self, power: float, delta: float) -> tuple[float, float]:
        """Returns the probability to pass, and the share of the problems that is expected to be decoded.

        Args:
            power: The probability to pass by one look at the whole part, at level `delta`.
        """
        return self.walk(delta).outlook(float(np.clip(ndtri(power) - ndtri(delta), LEAST_DRIFT, _HIGHEST)))

    def power_for(self, chance: float, delta: float) -> float:
        """Returns the power by one look at the whole part with which looks pass with probability `chance`."""
        drift = brentq(lambda drift: self.walk(delta).outlook(drift)[0] - chance, LEAST_DRIFT, _HIGHEST)
        return float(ndtr(drift + ndtri(delta)))

    def level(self, problems: int, delta: float) -> float:
        """Returns the level of the look after so many problems: p-values up to it pass.

        Raises:
            ValueError: There is no look after so many.
        """
        if problems not in self.problems:
            raise ValueError(f"{problems} problems are none of the looks {self.problems}")
        return self.walk(delta).levels[self.problems.index(problems)]


@lru_cache(maxsize=1024)
def _walk(problems: tuple[int, ...], delta: float) -> Walk:
    return Walk(tuple(number / problems[-1] for number in problems), delta)


class Walk:
    """A Brownian motion W on times up to 1, which passes at the first look where W / sqrt(time) reaches a height.

    Its drift, the expectation of W at time 1, is 0 where the claim is only just false.

    Args:
        times: Of the looks, rising; the last is 1.
        delta: The probability to pass without drift. Of it, time to the fourth power is spent up to each look (Kim and
            DeMets, Biometrika 74, 1987).

    Attributes:
        levels: Of the looks: the probability of their heights, without drift, each by itself.
    """

    def __init__(self, times: tuple[float, ...], delta: float) -> None:
        self.times, self.heights, self.levels = times, list[float](), list[float]()
        self._before = [_START]  # paths that go on to each look
        spent = 0.0
        for look, time in enumerate(times):
            to_spend = delta * time**_SPENT - spent
            spent += to_spend
            height = brentq(lambda z: self.reach(look, z, 0.0) - to_spend, -_HIGHEST, _HIGHEST)  # noqa: B023
            self.heights.append(float(height))
            self.levels.append(to_spend if look == 0 else float(ndtr(-height)))
            if time < 1:
                self._before.append(self._onward(self._before[-1], look, -math.inf))

    def _onward(self, paths: _Paths, look: int, low: float) -> _Paths:
        """Returns the paths that go on after a look, those above `low` and below its height."""
        time = self.times[look]
        finest = min(time - paths.time, self.times[look + 1] - time)
        return paths.within(time, low, self.heights[look] * time**0.5, finest)

    def reach(self, look: int, height: float, drift: float) -> float:
        """Returns the probability to pass no look before this one, and to have at least this height there."""
        return self._before[look].reach(self.times[look], height * self.times[look] ** 0.5, drift)

    def as_good(self, look: int, height: float, drift: float) -> float:
        """Returns the probability to pass at an earlier look, or at this one with this height or more."""
        return sum(self.reach(i, self.heights[i], drift) for i in range(look)) + self.reach(look, height, drift)

    def share_as_good(self, look: int, height: float, drift: float) -> float:
        """Returns the share of what passes that passes at an earlier look, or at this one with this height or more."""
        return self.as_good(look, height, drift) / self.as_good(len(self.times) - 1, self.heights[-1], drift)

    def outlook(self, drift: float) -> tuple[float, float]:
        """Returns the probability to pass, and the expected time of the last look, if what is hopeless is given up."""
        chance = share = 0.0
        for look, (paths, time) in enumerate(zip(self._hopeful, self.times, strict=True)):
            share += (time - paths.time) * paths.mass(drift)
            chance += paths.reach(time, self.heights[look] * time**0.5, drift)
        return chance, share

    @cached_property
    def _hopeful(self) -> list[_Paths]:
        """The paths that go on to each look where what is hopeless is given up.

        As in `hope`: the rest of a path is judged by what was seen of it.
        """
        hopeful = [_START]
        for look, time in enumerate(self.times[:-1]):
            low = time * self.heights[-1] + (time * (1 - time)) ** 0.5 * float(ndtri(hope(time)))
            hopeful.append(self._onward(hopeful[-1], look, low))
        return hopeful


def hope(time: float) -> float:
    """Returns the chance to pass in the end that a test must have after a look to go on."""
    return _HOPELESS * time**2


@dataclass(frozen=True)
class _Paths:
    """The law, without drift, of W at a time on paths that were not stopped: masses of points, (points,) each."""

    time: float
    points: Floats
    masses: Floats

    def _drifted(self, drift: float) -> Floats:
        """The masses under a drift, by the ratio of likelihoods."""
        return np.asarray(self.masses * np.exp(drift * self.points - drift**2 / 2 * self.time))

    def mass(self, drift: float) -> float:
        return float(self._drifted(drift).sum())

    def reach(self, time: float, value: float, drift: float) -> float:
        """Returns the probability to be at least `value` at a later time."""
        step = time - self.time
        return float(self._drifted(drift) @ ndtr((self.points + drift * step - value) / step**0.5))

    def within(self, time: float, low: float, high: float, finest: float) -> _Paths:
        """Returns the law at a later time of paths that are between two values there.

        Args:
            finest: The shortest time within which it is needed.
        """
        low = max(low, LEAST_DRIFT * time - _REACH * time**0.5)
        count = _NODES + math.ceil(_NODES_A_STEP * (high - low) / finest**0.5)
        nodes, weights = leggauss(count)
        points, step = low + (high - low) * (nodes + 1) / 2, time - self.time
        density = (
            np.exp(-((points[:, None] - self.points) ** 2) / (2 * step)) @ self.masses / (2 * math.pi * step) ** 0.5
        )
        return _Paths(time, points, density * weights * (high - low) / 2)


_START: Final = _Paths(0.0, np.zeros(1), np.ones(1))
