"""The objective to measure the Pareto front of retention and speed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from fsd_calib.measuring.evaluator import Evaluator
from fsd_calib.measuring.measurement import Measurement
from fsd_calib.search.forecast import Forecast, speed_at
from fsd_calib.search.objective import Assessment, FinishedTrial, History, retention
from fsd_calib.search.space import Point, Space, logit
from fsd_decoding.profile.setting import Setting

SELECTABLE = 0.9  # users choose among points with this retention; points below only show where quality ends
_ERRORS = 2.0  # standard errors of margin above it, since the best of many measured points is overestimated
_HIGHEST = 0.95  # of the retention with that margin, however few the problems
_FROM = logit(0.7)  # the smallest share that is tried
_COARSE = (1 / 3, 2 / 3, 1.0)  # shares of the range of logit(u) tried first, in every family
_WANTED, _RESERVED = 6, 8  # selectable points: wanted, and searched for, since other problems will show some as beaten
_STEP = 1 / 6  # largest gap between neighbours, as a share of the range of retention or speed
_ONE = 1.5  # problems: retentions closer than this have no other between them
_FASTER = 1.01  # ratio of speeds from which on one is clearly faster
_NARROW = 0.01  # in logit(u): thresholds closer than this count as the same


def selectable_retention(problems: int) -> float:
    """Returns the retention that a point must show on so many problems, so that it retains `SELECTABLE` on others
    too."""
    return min(SELECTABLE + _ERRORS * math.sqrt(SELECTABLE * (1 - SELECTABLE) / problems), _HIGHEST)


class FrontPoint(NamedTuple):
    """Retention and speed of one setting."""

    retention: float
    tokens_per_second: float

    def dominates(self, other: FrontPoint) -> bool:
        """Whether it is at least as good in both."""
        return self.retention >= other.retention and self.tokens_per_second >= other.tokens_per_second


class FrontScale(NamedTuple):
    """Distances between points of a front.

    A distance of 1 is the range from `least` retention to full retention, or the range of speeds.

    Attributes:
        least: Retentions below it count as the same.
        speed_range: Range of speeds, in tokens/s.
        resolution: Steps in retention up to this size count as 0: no other retention lies between.
    """

    least: float
    speed_range: float
    resolution: float = 0.0

    def between(self, strict: FrontPoint, loose: FrontPoint) -> float:
        """Returns the distance of two points: the larger of those in retention and in speed."""
        return max(
            self.retention_step(strict, loose),
            abs(strict.tokens_per_second - loose.tokens_per_second) / self.speed_range,
        )

    def retention_step(self, strict: FrontPoint, loose: FrontPoint) -> float:
        if abs(strict.retention - loose.retention) <= self.resolution:
            return 0.0
        return abs(max(strict.retention, self.least) - max(loose.retention, self.least)) / (1 - self.least)


def scale_of(points: Sequence[FrontPoint], least: float, resolution: float = 0.0) -> FrontScale:
    """Returns the scale of these points; the range of speeds is that of points that retain `least`, or of all points
    where those have a single speed."""
    enough = [s.tokens_per_second for s in points if s.retention >= least]
    all_speeds = [s.tokens_per_second for s in points]
    ranges = (max(s) - min(s) for s in (enough, all_speeds) if s)
    return FrontScale(least, next((width for width in ranges if width > 0), 1.0), resolution)


def thin_out(front: Sequence[FrontPoint], most: int, least: float) -> list[int]:
    """Returns the indices of at most `most` points to keep, slowest first as in `front`.

    Points are removed one by one, each the one closest to its neighbours: first among those that retain less than
    `SELECTABLE`, then among those between `SELECTABLE` and `least`, then among the rest, whose ends stay.
    """
    kept = list(range(len(front)))
    while len(kept) > most:
        points = [front[i] for i in kept]
        groups = ((low, _between(points, low, high)) for low, high in ((0.0, SELECTABLE), (SELECTABLE, least)))
        low, places = next((group for group in groups if group[1]), (least, range(1, len(kept) - 1)))
        kept.pop(min(places, key=partial(_isolation, points, scale_of(points, low))))
    return kept


def _between(points: Sequence[FrontPoint], low: float, high: float) -> Sequence[int]:
    """Returns the indices of points whose retention is in [low, high), except the first point."""
    return [i for i, point in enumerate(points) if i and low <= point.retention < high]


def _isolation(points: Sequence[FrontPoint], scale: FrontScale, i: int) -> tuple[float, float]:
    """Returns a point's distance to its closer neighbour, then the distance between its neighbours; infinite at the
    end."""
    if i + 1 == len(points):
        return math.inf, math.inf
    before, here, after = points[i - 1 : i + 2]
    return min(scale.between(before, here), scale.between(here, after)), scale.between(before, after)


@dataclass(frozen=True)
class ParetoFront:
    """Spreads thresholds over retention and speed, each at the draft length that is fastest by replay.

    The selectable part of the front is refined first, then the rest. Every trial is feasible and decodes the whole
    tuning part, since points are compared with one another.
    """

    description: str = "the front"

    def propose(self, history: History, space: Space, forecast: Forecast) -> Point | None:
        """Proposes a coarse grid first, so that a search that ends early covers the whole range; then the middle of the
        widest gap."""
        evaluated = [Point(t.arm, t.logit_share) for t in history.trials] + list(history.running)
        coarse = next(
            (p for p in _coarse(space, forecast) if not any(_same_point(p, other) for other in evaluated)), None
        )
        if coarse is not None:
            return coarse
        gaps = list(_gaps(history, space, forecast))
        selectable = selectable_retention(min((t.problems for t in history.trials), default=1))
        gaps_by_range = (
            _widest(gaps, history.trials, *window)
            for window in ((selectable, _RESERVED), (SELECTABLE, _WANTED), (0.0, 0))
        )
        gap = next((gap for gap in gaps_by_range if gap is not None), None)
        return None if gap is None else Point(_fastest(gap.family, gap.middle, forecast), gap.middle)

    def reason_untried(self, arm: Setting, history: History, space: Space, forecast: Forecast) -> str:
        return "by replay another draft length is faster at every threshold, or the trials ran out"

    def assess(self, fuzzy: Measurement, target: Measurement, whole: int, forecast: Forecast) -> Assessment:
        return Assessment(retention(fuzzy, target), 0.0, settled=False)

    def freeze(
        self,
        trials: Sequence[FinishedTrial],
        space: Space,
        evaluator: Evaluator,
        target: Measurement,
        forecast: Forecast,
    ) -> list[Setting]:
        return [t.setting for t in not_clearly_dominated(trials)]


def nondominated(trials: Iterable[FinishedTrial]) -> list[FinishedTrial]:
    """Returns the trials that no other one dominates, most accurate first."""
    front: list[FinishedTrial] = []
    for t in sorted(trials, key=lambda t: (-t.retention, -t.tokens_per_second)):
        if not front or t.tokens_per_second > front[-1].tokens_per_second:
            front.append(t)
    return front


def not_clearly_dominated(trials: Sequence[FinishedTrial]) -> list[FinishedTrial]:
    """Returns the trials that no other one clearly dominates, slowest first: on other problems they may be on the
    front."""
    distinct = {_front_point(t): t for t in reversed(trials)}.values()
    return sorted(
        (t for t in distinct if not any(_clearly_dominates(other, t) for other in distinct)),
        key=lambda t: (t.tokens_per_second, -t.retention),
    )


def _clearly_dominates(one: FinishedTrial, other: FinishedTrial) -> bool:
    """Whether one dominates the other by more than one problem or by 1 % of the speed."""
    more = one.retention - other.retention > _ONE / one.problems
    faster = one.tokens_per_second > _FASTER * other.tokens_per_second
    return _front_point(one).dominates(_front_point(other)) and (more or faster)


class _Gap(NamedTuple):
    """A gap in logit(u) between neighbouring points of a family, the stricter and the looser."""

    family: Sequence[Setting]
    low: float
    high: float
    strict: FrontPoint
    loose: FrontPoint

    @property
    def middle(self) -> float:
        return (self.low + self.high) / 2

    @property
    def best(self) -> FrontPoint:
        """The best point that can be expected in the gap: retention may dip and recover, so it is that of the better
        end."""
        return FrontPoint(max(self.strict.retention, self.loose.retention), self.loose.tokens_per_second)


def _coarse(space: Space, forecast: Forecast) -> Iterator[Point]:
    start = _start(forecast)
    for share in _COARSE:
        at = start + share * (forecast.highest - start)
        yield from (Point(_fastest(family, at, forecast), at) for family in space.families)


def _gaps(history: History, space: Space, forecast: Forecast) -> Iterator[_Gap]:
    """Yields the gaps in which no other worker has a trial.

    Each family starts at a point where next to nothing is accepted; its retention is taken as 1, without a trial.
    """
    start = _start(forecast)
    for family in space.families:
        strictest = FrontPoint(1.0, speed_at(forecast, _fastest(family, start, forecast), start))
        measured = sorted((t.logit_share, _front_point(t)) for t in history.trials if t.arm in family)
        running = [p.logit_share for p in history.running if p.arm in family]
        for (low, strict), (high, loose) in pairwise([(start, strictest), *measured]):
            if high - low > _NARROW and not any(low < at < high for at in running):
                yield _Gap(family, low, high, strict, loose)


def _widest(gaps: Sequence[_Gap], trials: Sequence[FinishedTrial], least: float, wanted: int) -> _Gap | None:
    """Returns the widest gap that may hold a point of the front which retains `least`.

    None: no such gap, or the front is dense there and has `wanted` points.
    """
    front = [_front_point(t) for t in nondominated(trials)]
    promising = [g for g in gaps if g.best.retention >= least and not any(point.dominates(g.best) for point in front)]
    scale = scale_of([*front, *(g.strict for g in gaps)], least, _ONE / max((t.problems for t in trials), default=1))
    enough = sum(point.retention >= least for point in front) >= wanted
    wide = [
        g for g in promising
        if scale.between(g.strict, g.loose) > _STEP or (not enough and scale.retention_step(g.strict, g.loose))
    ]  # fmt: skip
    return max(wide, key=lambda g: scale.between(g.strict, g.loose), default=None)


def _start(forecast: Forecast) -> float:
    return max(forecast.lowest, min(_FROM, forecast.highest))


def _fastest(family: Sequence[Setting], at: float, forecast: Forecast) -> Setting:
    return max(family, key=lambda arm: speed_at(forecast, arm, at))


def _front_point(t: FinishedTrial) -> FrontPoint:
    return FrontPoint(t.retention, t.tokens_per_second)


def _same_point(one: Point, other: Point) -> bool:
    return one.arm == other.arm and abs(one.logit_share - other.logit_share) <= _NARROW
