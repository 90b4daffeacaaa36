"""Looks: after how many problems outcomes are tested, at which levels, and the law of what passes.

A test that looks several times has more chances to pass a false claim, so every look has a lower level. Levels follow
from the correlation of what the looks see: sums over more and more problems move as a Brownian motion, whose time is
the share of problems decoded (Lan and DeMets, Biometrika 70, 1983; Jennison and Turnbull, Group Sequential Methods,
2000, chapters 7, 8 and 19).

An attempt that goes on from an earlier one has stages: the problems of then, and more. How many more may have been
chosen by what the first showed, so problems are not simply pooled: each stage takes as long as any other, and what it
shows by itself moves the walk on by a step of that length, whatever its size (the inverse normal combination; Lehmacher
and Wassmer, Biometrics 55, 1999).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Final, NamedTuple, Self

import numpy as np
from numpy.polynomial.legendre import leggauss
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from fsd_calib.certification.outcomes import Counts, Floats, Paired

_APART = 0.005  # of the whole part: looks closer than this are one
_SPENT = 4  # power of time in the level spent: early looks pass only what is overwhelming, at little cost to the last
_HOPELESS = 0.02  # times the square of time: what has a smaller chance to pass in the end is given up
_REACH = 9.0  # standard deviations of paths that are followed
LEAST_DRIFT: Final = -7.0
"""The drift down to which the law of what passes is computed."""
_HIGHEST = 40.0  # normal quantile of any level
_NODES, _NODES_A_STEP = 24, 4  # of an integral over paths, and more for each standard deviation of a step


class Stage(NamedTuple):
    """The problems of an earlier attempt that this one goes on from.

    Attributes:
        end: The number of problems up to its last.
        dropped: How many others counted as lost there, see `dropped`; they do so ever after.
        share: Of the size of the whole test: what the earlier attempt had.
    """

    end: int
    dropped: int = 0
    share: float = 0.0


class Seen(NamedTuple):
    """What a look sees of a stage: its problems from `start` to `end`, which took so much time, in stages."""

    start: int
    end: int
    time: float


class Begun(NamedTuple):
    """So many problems are decoded already, and have this p-value together."""

    problems: int
    p_value: float


NOTHING: Final = Begun(0, 0.5)


@dataclass(frozen=True)
class Looks:
    """The numbers of problems after which outcomes are tested, rising; the last is the whole part.

    Args:
        earlier: The stages before the last, of the attempts that this one goes on from.
    """

    problems: tuple[int, ...]
    earlier: tuple[Stage, ...] = ()

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

    def extended(self, more: Self, dropped: int = 0) -> Self:
        """Returns these looks, followed by those at further problems; the sizes of stages are still to be given.

        Args:
            dropped: See `Stage`, of the stage that these looks end with.
        """
        later = (self.whole + number for number in more.problems)
        return replace(self, problems=(*self.problems, *later), earlier=(*self.earlier, Stage(self.whole, dropped)))

    def sized(self, sizes: Sequence[float]) -> Self:
        """Returns these looks with the sizes of the tests that the stages are, (stages,)."""
        shares = (size / sum(sizes) for size in sizes)
        stages = zip(self.earlier, shares, strict=False)
        return replace(self, earlier=tuple(stage._replace(share=share) for stage, share in stages))

    @property
    def whole(self) -> int:
        """The number of problems of the whole part."""
        return self.problems[-1]

    def seen(self, problems: int) -> list[Seen]:
        """Returns what is seen of each stage after so many problems."""
        ends = [0, *(stage.end for stage in self.earlier), self.whole]
        stages = [(start, end) for start, end in pairwise(ends) if start < problems]
        return [Seen(start, min(end, problems), (min(end, problems) - start) / (end - start)) for start, end in stages]

    def stages(self, paired: Paired) -> list[tuple[Paired, float]]:
        """Returns the grades of each stage as far as they are seen, with the time that they took, in stages."""
        return [(paired.part(each.start, each.end), each.time) for each in self.seen(paired.problems)]

    def time(self, problems: int) -> float:
        """Returns the time after so many problems, as a share of the whole."""
        return sum(each.time for each in self.seen(problems)) / (1 + len(self.earlier))

    def spent(self, problems: int) -> float:
        """Returns the share of the size that is spent after so many problems.

        Each stage spends its own, by the fourth power of time (Kim and DeMets, Biometrika 74, 1987).
        """
        before, stages = len(self.seen(problems)) - 1, 1 + len(self.earlier)
        shares = [stage.share for stage in self.earlier]
        begin, now, end = (
            (before / stages) ** _SPENT,
            self.time(problems) ** _SPENT,
            ((before + 1) / stages) ** _SPENT,
        )
        own = (*shares, 1 - sum(shares))[before]
        return sum(shares[:before]) + own * (now - begin) / (end - begin)

    def walk(self, delta: float) -> Walk:
        """Returns the law of what passes by looks that together have size `delta`."""
        return _walk(self, delta)

    def outlook(self, power: float, delta: float, begun: Begun = NOTHING) -> tuple[float, float]:
        """Returns the probability to pass, and the share of the rest that is expected to be decoded.

        Args:
            power: The probability to pass by one look at the rest, at level `delta`; at first the rest is all.
        """
        drift = float(np.clip(ndtri(power) - ndtri(delta), LEAST_DRIFT, _HIGHEST))
        return self._outlook(drift, delta, begun)

    def power_for(self, chance: float, delta: float, begun: Begun = NOTHING) -> float:
        """Returns the power by one look at the rest with which looks pass with probability `chance`."""
        drift = brentq(lambda drift: self._outlook(drift, delta, begun)[0] - chance, LEAST_DRIFT, _HIGHEST)
        return float(ndtr(drift + ndtri(delta)))

    def _outlook(self, drift: float, delta: float, begun: Begun) -> tuple[float, float]:
        """The same by the drift over the rest alone, whose time is counted as 1."""
        time = self.time(begun.problems)
        value = float(np.clip(-ndtri(begun.p_value), -_REACH, _REACH)) * time**0.5
        return self.walk(delta).outlook(drift / (1 - time) ** 0.5, time, value)

    def level(self, problems: int, delta: float) -> float:
        """Returns the level of the look after so many problems: p-values up to it pass.

        Raises:
            ValueError: There is no look after so many.
        """
        if problems not in self.problems:
            raise ValueError(f"{problems} problems are none of the looks {self.problems}")
        return self.walk(delta).levels[self.problems.index(problems)]


def combined(p_values: ArrayLike, times: Sequence[float]) -> Floats:
    """Returns p-values of stages together, (...), by their own, (stages, ...), and the times that they took."""
    each = np.asarray(p_values, np.float64)
    if len(times) == 1:
        return np.asarray(each[0])
    steps = np.clip(ndtri(each), -_REACH, _REACH)
    return np.asarray(ndtr(np.tensordot(np.sqrt(times), steps, 1) / sum(times) ** 0.5))


@lru_cache(maxsize=1024)
def _walk(looks: Looks, delta: float) -> Walk:
    return Walk([looks.time(each) for each in looks.problems], [delta * looks.spent(each) for each in looks.problems])


class Walk:
    """A Brownian motion W on times up to 1, which passes at the first look where W / sqrt(time) reaches a height.

    Its drift, the expectation of W at time 1, is 0 where the claim is only just false.

    Args:
        times: Of the looks, rising; the last is 1.
        spent: The probability to pass without drift up to each look.

    Attributes:
        levels: Of the looks: the probability of their heights, without drift, each by itself.
    """

    def __init__(self, times: Sequence[float], spent: Sequence[float]) -> None:
        self.times, self.heights, self.levels = times, list[float](), list[float]()
        self._before = [_START]  # paths that go on to each look
        for look, to_spend in enumerate(np.diff(spent, prepend=0.0).tolist()):
            height = brentq(lambda z: self.reach(look, z, 0.0) - to_spend, -_HIGHEST, _HIGHEST)  # noqa: B023
            self.heights.append(float(height))
            self.levels.append(to_spend if look == 0 else float(ndtr(-height)))
            if look < len(times) - 1:
                self._before.append(self.onward(self._before[-1], look, -math.inf))

    def reach(self, look: int, height: float, drift: float) -> float:
        """Returns the probability to pass no look before this one, and to have at least this height there."""
        return self._before[look].reach(self.times[look], height * self.times[look] ** 0.5, drift)

    def as_good(self, look: int, height: float, drift: float) -> float:
        """Returns the probability to pass at an earlier look, or at this one with this height or more."""
        return sum(self.reach(i, self.heights[i], drift) for i in range(look)) + self.reach(look, height, drift)

    def share_as_good(self, look: int, height: float, drift: float) -> float:
        """Returns the share of what passes that passes at an earlier look, or at this one with this height or more."""
        return self.as_good(look, height, drift) / self.as_good(len(self.times) - 1, self.heights[-1], drift)

    def outlook(self, drift: float, time: float = 0.0, value: float = 0.0) -> tuple[float, float]:
        """Returns the probability to pass, and the expected share of the rest of time that is taken, if what is
        hopeless is given up.

        Args:
            value: Of W at `time`, where the walk is.
        """
        chance = share = 0.0
        for look, paths in _hopeful(self, time, value):
            share += (self.times[look] - paths.time) * paths.mass(drift)
            chance += paths.reach(self.times[look], self.heights[look] * self.times[look] ** 0.5, drift)
        return chance, share / (1 - time)

    def hopeless(self, time: float) -> float:
        """Returns the value of W below which a look gives up: the rest of a path is judged by what was seen of it, see
        `hope`."""
        return float(time * self.heights[-1] + (time * (1 - time)) ** 0.5 * ndtri(hope(time)))

    def onward(self, paths: _Paths, look: int, low: float) -> _Paths:
        """Returns the paths that go on after a look, those above `low` and below its height."""
        time = self.times[look]
        finest = min(time - paths.time, self.times[look + 1] - time)
        return paths.within(time, low, self.heights[look] * time**0.5, finest)


@lru_cache(maxsize=1024)
def _hopeful(walk: Walk, time: float, value: float) -> list[tuple[int, _Paths]]:
    """Returns the later looks, each with the paths that go on to it where what is hopeless is given up."""
    paths, found = _Paths.of(time, value), list[tuple[int, _Paths]]()
    for look, then in enumerate(walk.times):
        if then > time:
            found.append((look, paths))
            if look < len(walk.times) - 1:
                paths = walk.onward(paths, look, walk.hopeless(then))
    return found


def hope(time: float) -> float:
    """Returns the chance to pass in the end that a test must have after a look to go on."""
    return _HOPELESS * time**2


@dataclass(frozen=True)
class _Paths:
    """The law, without drift, of W at a time on paths that were not stopped: masses of points, (points,) each.

    Attributes:
        began: Time and value at which they began.
    """

    time: float
    points: Floats
    masses: Floats
    began: tuple[float, float]

    @classmethod
    def of(cls, time: float, value: float) -> Self:
        return cls(time, np.full(1, value), np.ones(1), (time, value))

    def _drifted(self, drift: float) -> Floats:
        """The masses under a drift, by the ratio of likelihoods."""
        time, value = self.began
        return np.asarray(self.masses * np.exp(drift * (self.points - value) - drift**2 / 2 * (self.time - time)))

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
        return _Paths(time, points, density * weights * (high - low) / 2, self.began)


_START: Final = _Paths.of(0.0, 0.0)
