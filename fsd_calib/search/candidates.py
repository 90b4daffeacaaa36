"""Settings that may be frozen, each measured on the whole tuning part: what was tried on it, and a few more.

Knows prospects, and measures where they are best. Decides no sequence.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fsd_calib.measuring.evaluator import Evaluator
from fsd_calib.measuring.measurement import Measurement
from fsd_calib.search import outcome_shifts
from fsd_calib.search.bar import Bar, Floats
from fsd_calib.search.forecast import Forecast, placed
from fsd_calib.search.history import Seen, Tried
from fsd_calib.search.prospects import Prospects, every, settings_at
from fsd_calib.search.space import Point, Space

# MERGED: """The sequence that is put to the test: which settings, and in which order. Knows prospects, and simulates the test.
#
# Settings of all arms may stand in it. Each is faster than the one before, and none has a better chance of passing than
# the one before, so that a test too many seldom costs what came before it.
# """


_CHANCES = (0.97, 0.9, 0.8, 0.65, 0.5, 0.3)  # of passing: the fastest setting that has each is measured
_ROUNDS = 2  # of measuring, each with what the one before showed
_ALIKE = 0.995  # of a speed: a setting that was measured already is as good as one so little faster


def contenders(
    tried: Sequence[Tried],
    space: Space,
    evaluator: Evaluator,
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
            whole[point] = _seen(point, evaluator.measure(placed(forecast, point)), target)
    if not whole:
        likeliest = _likeliest(tried, bar, lossless)
        whole[likeliest] = _seen(likeliest, evaluator.measure(placed(forecast, likeliest)), target)
    speeds = [forecast.measured(evaluator.measure(placed(forecast, point))) for point in whole]
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
    flipped = outcome_shifts.flips(fuzzy, target) / fuzzy.problems
    return Seen(point.arm, point.logit_share, fuzzy.accuracy - target.accuracy, flipped, fuzzy.problems)


_DRAWS = 4_000
_MOST = 6  # settings
_WORTH = 0.003  # of the speed expected: what one more setting, which must be decoded, has to add
_EVEN = 0.5


def sequence(prospects: Prospects) -> list[int]:
    """Indices of settings: the sequence whose certified speed is expected to be greatest, built one by one."""
    passed = passes(prospects)
    speeds, chances = prospects.settings.speeds, passed.mean(0)
    chosen: list[int] = []
    best = prospects.lossless
    while len(chosen) < _MOST:
        longer = [_inserted(chosen, i, speeds, chances) for i in range(len(speeds)) if i not in chosen]
        values = [(expected_speed(s, passed, speeds, prospects.lossless), s) for s in longer if s is not None]
        if not values or max(values)[0] <= best * (1 + _WORTH):
            break
        best, chosen = max(values)
    return chosen


def passes(prospects: Prospects) -> NDArray[np.bool_]:
    """(draws, settings): whether each passes; truth and luck are drawn together for all of them."""
    believed, luck = prospects.covariances()
    random = np.random.default_rng(0)  # the same settings, the same sequence
    shown = random.multivariate_normal(prospects.believed.mean, believed + luck, _DRAWS, "ignore", method="eigh")
    return np.asarray(shown >= prospects.needed)


def _inserted(chosen: Sequence[int], new: int, speeds: Floats, chances: Floats) -> list[int] | None:
    """In order of speed; None: it would not be an order of chances too, or more than the last is less than even."""
    longer = sorted([*chosen, new], key=lambda i: speeds[i])
    falling = all(chances[a] >= chances[b] and speeds[a] < speeds[b] for a, b in pairwise(longer))
    return longer if falling and all(chances[i] >= _EVEN for i in longer[:-1]) else None


def expected_speed(chosen: Sequence[int], passed: NDArray[np.bool_], speeds: Floats, lossless: float) -> float:
    """Tokens/s certified, on average over draws."""
    reached = np.cumprod(passed[:, chosen], axis=1).sum(1)  # how many pass before one fails
    return float(np.array([lossless, *speeds[chosen]])[reached].mean())
