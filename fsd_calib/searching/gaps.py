"""Steps between points of a front, in retention and in speed: the widest, and how to leave points out evenly.

Knows pairs of numbers. Knows nothing of thresholds, and runs no trial.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

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
