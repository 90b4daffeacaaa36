"""Choice of the frozen sequence: its candidates, measured on the whole tuning part, and their order.

Settings of all arms may be in the sequence. Each is faster than the one before it and has no better chance of passing,
so that an additional test rarely costs the certificate of an earlier one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fsd_calib.measuring.evaluator import Evaluator
from fsd_calib.measuring.measurement import Measurement
from fsd_calib.search import sensitivity
from fsd_calib.search.acquisition import Prospects, all_settings, settings_at
from fsd_calib.search.forecast import Forecast, configuration_at
from fsd_calib.search.history import FinishedTrial, Observation
from fsd_calib.search.pass_model import Floats, PassModel
from fsd_calib.search.space import Point, Space

_CHANCES = (0.97, 0.9, 0.8, 0.65, 0.5, 0.3)  # of passing: for each, the fastest setting that reaches it is measured
_ROUNDS = 2  # of measuring, each with predictions that include the round before
_ALIKE = 0.995  # a measured setting with this share of the best speed is not worth another measurement
_DRAWS = 4_000  # simulated tests
_MOST = 6  # settings in a sequence
_WORTH = 0.003  # share of the expected speed that one more setting, which must be decoded, has to add
_EVEN = 0.5  # chance of passing that every setting but the last must have


def measure_candidates(
    trials: Sequence[FinishedTrial],
    space: Space,
    evaluator: Evaluator,
    target: Measurement,
    forecast: Forecast,
    pass_model: PassModel,
    lossless: float,
) -> Prospects:
    """Returns predictions for the candidates: settings measured on the whole tuning part.

    Candidates are the trials that decoded the whole part, and the settings that look fastest at several chances of
    passing. The cache holds decodings by interval of thresholds, so a threshold between two that were tried costs
    little. Speeds are computed from the measured rounds.
    """
    whole = {Point(t.arm, t.logit_share): t.observation for t in trials if t.problems == target.problems}
    partial = [t.observation for t in trials if t.problems < target.problems]
    settings = all_settings(space, forecast).corrected(trials, forecast)
    for _ in range(_ROUNDS):
        for point in _fastest_by_chance(Prospects(settings, [*whole.values(), *partial], pass_model, lossless), whole):
            whole[point] = _observation(point, evaluator.measure(configuration_at(forecast, point)), target)
    if not whole:
        safest = _most_likely_to_pass(trials, pass_model, lossless)
        whole[safest] = _observation(safest, evaluator.measure(configuration_at(forecast, safest)), target)
    speeds = [forecast.measured(evaluator.measure(configuration_at(forecast, point))) for point in whole]
    return Prospects(settings_at(whole, speeds), [*whole.values(), *partial], pass_model, lossless)


def _fastest_by_chance(prospects: Prospects, measured: Collection[Point]) -> list[Point]:
    """Returns, for each chance of passing, the fastest setting that has it, unless a measured one is nearly as fast."""
    settings, fastest = prospects.settings, dict[Point, None]()
    for chance in _CHANCES:
        likely = np.flatnonzero((prospects.chances >= chance) & (settings.speeds > prospects.lossless))
        fast = [int(i) for i in likely if settings.speeds[i] >= _ALIKE * settings.speeds[likely].max()]
        if fast and not any(settings.point(i) in measured for i in fast):
            fastest[settings.point(max(fast, key=lambda i: float(prospects.chances[i])))] = None
    return list(fastest)


def _most_likely_to_pass(trials: Sequence[FinishedTrial], pass_model: PassModel, lossless: float) -> Point:
    """Returns the point among the trials with the highest chance of passing."""
    points = [Point(t.arm, t.logit_share) for t in trials]
    measured = Prospects(settings_at(points), [t.observation for t in trials], pass_model, lossless)
    return points[int(measured.chances.argmax())]


def _observation(point: Point, fuzzy: Measurement, target: Measurement) -> Observation:
    flipped = sensitivity.flips(fuzzy, target) / fuzzy.problems
    return Observation(point.arm, point.logit_share, fuzzy.accuracy - target.accuracy, flipped, fuzzy.problems)


def choose_sequence(prospects: Prospects) -> list[int]:
    """Returns the indices of the settings to test, in order: a greedy search for the highest expected certified
    speed."""
    passed = simulate_passes(prospects)
    speeds, chances = prospects.settings.speeds, passed.mean(0)
    chosen: list[int] = []
    best = prospects.lossless
    while len(chosen) < _MOST:
        longer = [_insert(chosen, i, speeds, chances) for i in range(len(speeds)) if i not in chosen]
        values = [(expected_speed(s, passed, speeds, prospects.lossless), s) for s in longer if s is not None]
        if not values or max(values)[0] <= best * (1 + _WORTH):
            break
        best, chosen = max(values)
    return chosen


def simulate_passes(prospects: Prospects) -> NDArray[np.bool_]:
    """Returns, (draws, settings), whether each setting passes in simulated tests; the true values and the sampling
    noise are drawn jointly for all settings."""
    posterior, noise = prospects.covariances()
    random = np.random.default_rng(0)  # a fixed seed: the same settings give the same sequence
    shown = random.multivariate_normal(prospects.posterior.mean, posterior + noise, _DRAWS, "ignore", method="eigh")
    return np.asarray(shown >= prospects.needed)


def _insert(chosen: Sequence[int], new: int, speeds: Floats, chances: Floats) -> list[int] | None:
    """Returns the sequence with one more setting, in order of speed; None where chances would not fall in that order,
    or where a setting before the last is less likely to pass than not."""
    longer = sorted([*chosen, new], key=lambda i: speeds[i])
    falling = all(chances[a] >= chances[b] and speeds[a] < speeds[b] for a, b in pairwise(longer))
    return longer if falling and all(chances[i] >= _EVEN for i in longer[:-1]) else None


def expected_speed(chosen: Sequence[int], passed: NDArray[np.bool_], speeds: Floats, lossless: float) -> float:
    """Returns the certified speed in tokens/s, averaged over draws."""
    reached = np.cumprod(passed[:, chosen], axis=1).sum(1)  # number of settings that pass before the first failure
    return float(np.array([lossless, *speeds[chosen]])[reached].mean())
