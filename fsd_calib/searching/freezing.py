"""Settings that may be frozen, each measured on the whole tuning part: what was tried on it, and a few more.

Knows prospects, and measures where they are best. Decides no sequence.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from fsd_calib.measuring.bench import Bench
from fsd_calib.measuring.measurement import Measurement
from fsd_calib.searching import luck
from fsd_calib.searching.bar import Bar
from fsd_calib.searching.forecast import Forecast, placed
from fsd_calib.searching.history import Seen, Tried
from fsd_calib.searching.prospects import Prospects, every, settings_at
from fsd_calib.searching.space import Point, Space

_CHANCES = (0.97, 0.9, 0.8, 0.65, 0.5, 0.3)  # of passing: the fastest setting that has each is measured
_ROUNDS = 2  # of measuring, each with what the one before showed
_ALIKE = 0.995  # of a speed: a setting that was measured already is as good as one so little faster


def contenders(
    tried: Sequence[Tried],
    space: Space,
    bench: Bench,
    target: Measurement,
    forecast: Forecast,
    bar: Bar,
    lossless: float,
) -> Prospects:
    """With the speeds of the rounds that were counted. Decodings are kept by interval, so that a threshold between two
    that were tried costs little."""
    whole = {Point(t.arm, t.logit_share): t.seen for t in tried if t.problems == target.problems}
    partly = [t.seen for t in tried if t.problems < target.problems]
    settings = every(space, forecast).corrected(tried, forecast)
    for _ in range(_ROUNDS):
        for point in _fastest(Prospects(settings, [*whole.values(), *partly], bar, lossless), whole):
            whole[point] = _seen(point, bench.measure(placed(forecast, point)), target)
    if not whole:
        likeliest = _likeliest(tried, bar, lossless)
        whole[likeliest] = _seen(likeliest, bench.measure(placed(forecast, likeliest)), target)
    speeds = [forecast.measured(bench.measure(placed(forecast, point))) for point in whole]
    return Prospects(settings_at(whole, speeds), [*whole.values(), *partly], bar, lossless)


def _fastest(prospects: Prospects, known: Collection[Point]) -> list[Point]:
    """At each chance of passing the fastest setting that has it, unless what is known is as good."""
    settings, found = prospects.settings, dict[Point, None]()
    for chance in _CHANCES:
        likely = np.flatnonzero((prospects.chances >= chance) & (settings.speeds > prospects.lossless))
        fast = [int(i) for i in likely if settings.speeds[i] >= _ALIKE * settings.speeds[likely].max()]
        if fast and not any(settings.point(i) in known for i in fast):
            found[settings.point(max(fast, key=lambda i: float(prospects.chances[i])))] = None
    return list(found)


def _likeliest(tried: Sequence[Tried], bar: Bar, lossless: float) -> Point:
    points = [Point(t.arm, t.logit_share) for t in tried]
    known = Prospects(settings_at(points), [t.seen for t in tried], bar, lossless)
    return points[int(known.chances.argmax())]


def _seen(point: Point, fuzzy: Measurement, target: Measurement) -> Seen:
    flipped = luck.flips(fuzzy, target) / fuzzy.problems
    return Seen(point.arm, point.logit_share, fuzzy.accuracy - target.accuracy, flipped, fuzzy.problems)
