"""The goal to see what accuracy costs in speed, and the other way round. Knows neither a wish nor a certificate."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from fsd_calib.measuring.configuration import Configuration
from fsd_calib.measuring.evaluator import Evaluator
from fsd_calib.measuring.measurement import Measurement
from fsd_calib.search.forecast import Forecast, speed_at
from fsd_calib.search.history import History, Tried
from fsd_calib.search.objective import Assessment, PairedMeasurement, retention
from fsd_calib.search.space import Point, Space, logit

# MERGED: """Steps between points of a front, in retention and in speed: the widest, and how to leave points out evenly.
#
# Knows pairs of numbers. Knows nothing of thresholds, and runs no trial.
# """


CHOSEN = 0.9  # users choose among points that retain so much; what retains less only shows where quality goes
_ERRORS = 2.0  # standard errors above it, because what measures best measures too well
_HIGHEST = 0.95  # however few problems there are


def chosen_from(problems: int) -> float:
    """The retention, on so many problems, from which a point retains what users choose on others too."""
    return min(CHOSEN + _ERRORS * math.sqrt(CHOSEN * (1 - CHOSEN) / problems), _HIGHEST)


class Spot(NamedTuple):
    """A point of a front, by what it costs and what it gives."""

    retention: float
    tokens_per_second: float

    def beats(self, other: Spot) -> bool:
        """Or equals it, in both."""
        return self.retention >= other.retention and self.tokens_per_second >= other.tokens_per_second


class Steps(NamedTuple):
    """How far points are apart: 1 is from `least` retention to all of it, or from the slowest speed to the fastest.

    paces: between these two, in tokens/s. one: a step in retention that cannot be divided, and counts as none.
    Retention below `least` is not told apart.
    """

    least: float
    paces: float
    one: float = 0.0

    def between(self, strict: Spot, loose: Spot) -> float:
        return max(self.kept(strict, loose), abs(strict.tokens_per_second - loose.tokens_per_second) / self.paces)

    def kept(self, strict: Spot, loose: Spot) -> float:
        if abs(strict.retention - loose.retention) <= self.one:
            return 0.0
        return abs(max(strict.retention, self.least) - max(loose.retention, self.least)) / (1 - self.least)


def steps_among(spots: Sequence[Spot], least: float, one: float = 0.0) -> Steps:
    """Speeds are measured by the range of `spots` that retain `least`, or of all where that is a single speed."""
    enough = [s.tokens_per_second for s in spots if s.retention >= least]
    every = [s.tokens_per_second for s in spots]
    paces = (max(s) - min(s) for s in (enough, every) if s)
    return Steps(least, next((pace for pace in paces if pace > 0), 1.0), one)


def few(front: Sequence[Spot], most: int, least: float) -> list[int]:
    """Which to keep, slowest first as in `front`: those that retain `least` first, then `CHOSEN`, then the rest.

    One after the other goes the point of the last kind there is that is closest to a neighbour; of those that retain
    `least` the ends stay.
    """
    kept = list(range(len(front)))
    while len(kept) > most:
        spots = [front[i] for i in kept]
        kinds = ((low, _between(spots, low, high)) for low, high in ((0.0, CHOSEN), (CHOSEN, least)))
        low, places = next((kind for kind in kinds if kind[1]), (least, range(1, len(kept) - 1)))
        kept.pop(min(places, key=partial(_room, spots, steps_among(spots, low))))
    return kept


def _between(spots: Sequence[Spot], low: float, high: float) -> Sequence[int]:
    """The places of those that retain so much, but for the first."""
    return [i for i, spot in enumerate(spots) if i and low <= spot.retention < high]


def _room(spots: Sequence[Spot], steps: Steps, i: int) -> tuple[float, float]:
    """From the i-th to its neighbours: to the closer one, and from one to the other. The last one has all there is."""
    if i + 1 == len(spots):
        return math.inf, math.inf
    before, here, after = spots[i - 1 : i + 2]
    return min(steps.between(before, here), steps.between(here, after)), steps.between(before, after)


_FROM = logit(0.7)
_COARSE = (1 / 3, 2 / 3, 1.0)  # of the range of logit(u), in every family
_WANTED, _RESERVED = 6, 8  # points of the front where users choose; some of them other problems will find beaten
_STEP = 1 / 6  # of the range of retention or speed there: neighbours on the front are no farther apart
_ONE = 1.5  # problems: between retentions that are closer there is no other
_FASTER = 1.01
_NARROW = 0.01  # in logit(u): no threshold in between tells anything new


@dataclass(frozen=True)
class ParetoFront:
    """Thresholds spread in retention and speed, each at the draft length that replay finds fastest there.

    First where users choose, then the rest. Everything is feasible, and every trial takes the whole tuning part:
    points are compared with one another.
    """

    asked: str = "the front"

    def propose(self, history: History, space: Space, forecast: Forecast) -> Point | None:
        """Coarse, so that a search that ends early has seen the whole range; then the middle of the widest gap."""
        taken = [Point(t.arm, t.logit_share) for t in history.tried] + list(history.running)
        coarse = next((p for p in _coarse(space, forecast) if not any(_same(p, other) for other in taken)), None)
        if coarse is not None:
            return coarse
        gaps = list(_gaps(history, space, forecast))
        surely = chosen_from(min((t.problems for t in history.tried), default=1))
        found = (_widest(gaps, history.tried, *window) for window in ((surely, _RESERVED), (CHOSEN, _WANTED), (0.0, 0)))
        gap = next((gap for gap in found if gap is not None), None)
        return None if gap is None else Point(_fastest(gap.family, gap.middle, forecast), gap.middle)

    def why_not(self, arm: Configuration, history: History, space: Space, forecast: Forecast) -> str:
        return "by replay another draft length is faster at every threshold, or the trials ran out"

    def judge(self, seen: PairedMeasurement, forecast: Forecast) -> Assessment:
        return Assessment(retention(seen.fuzzy, seen.target), 0.0, settled=False)

    def freeze(
        self, tried: Sequence[Tried], space: Space, evaluator: Evaluator, target: Measurement, forecast: Forecast
    ) -> list[Configuration]:
        return [t.configuration for t in contenders(tried)]


def nondominated(tried: Iterable[Tried]) -> list[Tried]:
    """Those that no other beats in retention without being slower, most accurate first."""
    front: list[Tried] = []
    for t in sorted(tried, key=lambda t: (-t.retention, -t.tokens_per_second)):
        if not front or t.tokens_per_second > front[-1].tokens_per_second:
            front.append(t)
    return front


def contenders(tried: Sequence[Tried]) -> list[Tried]:
    """Those that no other clearly beats, slowest first: on other problems they may come out on either side."""
    told_apart = {_spot(t): t for t in reversed(tried)}.values()
    return sorted(
        (t for t in told_apart if not any(_clearly_beats(other, t) for other in told_apart)),
        key=lambda t: (t.tokens_per_second, -t.retention),
    )


def _clearly_beats(one: Tried, other: Tried) -> bool:
    """In nothing worse, and by more than a problem or a hundredth of the speed."""
    more = one.retention - other.retention > _ONE / one.problems
    faster = one.tokens_per_second > _FASTER * other.tokens_per_second
    return _spot(one).beats(_spot(other)) and (more or faster)


class _Gap(NamedTuple):
    """Between two neighbours of a family in logit(u), the stricter and the looser."""

    family: Sequence[Configuration]
    low: float
    high: float
    strict: Spot
    loose: Spot

    @property
    def middle(self) -> float:
        return (self.low + self.high) / 2

    @property
    def best(self) -> Spot:
        """What is hoped for in between. Retention may dip and recover, so it is that of either end."""
        return Spot(max(self.strict.retention, self.loose.retention), self.loose.tokens_per_second)


def _coarse(space: Space, forecast: Forecast) -> Iterator[Point]:
    start = _start(forecast)
    for share in _COARSE:
        at = start + share * (forecast.highest - start)
        yield from (Point(_fastest(family, at, forecast), at) for family in space.families)


def _gaps(history: History, space: Space, forecast: Forecast) -> Iterator[_Gap]:
    """Those that nobody works in. A family begins where next to nothing is accepted, which loses next to nothing and
    takes no trial."""
    start = _start(forecast)
    for family in space.families:
        strictest = Spot(1.0, speed_at(forecast, _fastest(family, start, forecast), start))
        seen = sorted((t.logit_share, _spot(t)) for t in history.tried if t.arm in family)
        busy = [p.logit_share for p in history.running if p.arm in family]
        for (low, strict), (high, loose) in pairwise([(start, strictest), *seen]):
            if high - low > _NARROW and not any(low < at < high for at in busy):
                yield _Gap(family, low, high, strict, loose)


def _widest(gaps: Sequence[_Gap], tried: Sequence[Tried], least: float, wanted: int) -> _Gap | None:
    """That may hide a point of the front which retains `least`; None: nothing lies between, or the front is dense
    there and has as many points as are wanted."""
    front = [_spot(t) for t in nondominated(tried)]
    hopeful = [g for g in gaps if g.best.retention >= least and not any(spot.beats(g.best) for spot in front)]
    steps = steps_among([*front, *(g.strict for g in gaps)], least, _ONE / max((t.problems for t in tried), default=1))
    enough = sum(spot.retention >= least for spot in front) >= wanted
    wide = [
        g for g in hopeful
        if steps.between(g.strict, g.loose) > _STEP or (not enough and steps.kept(g.strict, g.loose))
    ]  # fmt: skip
    return max(wide, key=lambda g: steps.between(g.strict, g.loose), default=None)


def _start(forecast: Forecast) -> float:
    return max(forecast.lowest, min(_FROM, forecast.highest))


def _fastest(family: Sequence[Configuration], at: float, forecast: Forecast) -> Configuration:
    return max(family, key=lambda arm: speed_at(forecast, arm, at))


def _spot(t: Tried) -> Spot:
    return Spot(t.retention, t.tokens_per_second)


def _same(one: Point, other: Point) -> bool:
    return one.arm == other.arm and abs(one.logit_share - other.logit_share) <= _NARROW
