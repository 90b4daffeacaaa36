"""The objective to be as fast as a certificate of accuracy allows, and the choice of its frozen sequence.

Settings of all arms may be in the sequence. Each is faster than the one before it and has no better chance of passing,
so that an additional test rarely costs the certificate of an earlier one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fsd_calib.measuring.evaluator import Evaluator
from fsd_calib.measuring.measurement import Measurement, flips, plausible_flips, with_gains, with_losses
from fsd_calib.search.acquisition import Prospects, all_settings, settings_at
from fsd_calib.search.forecast import Forecast, setting_at
from fsd_calib.search.objective import Assessment, FinishedTrial, History, Observation
from fsd_calib.search.space import Point, Space
from fsd_calib.search.surrogate import Floats, PassModel
from fsd_decoding.profile.setting import Setting

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
            whole[point] = _observation(point, evaluator.measure(setting_at(forecast, point)), target)
    if not whole:
        safest = _most_likely_to_pass(trials, pass_model, lossless)
        whole[safest] = _observation(safest, evaluator.measure(setting_at(forecast, safest)), target)
    speeds = [forecast.measured(evaluator.measure(setting_at(forecast, point))) for point in whole]
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
    flipped = flips(fuzzy, target) / fuzzy.problems
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


Chance = Callable[[Measurement, Measurement], float]
"""Returns the chance of passing the test, taking the outcomes of (fuzzy, target) on the same problems as the truth."""

_DEVIATIONS = 2.5  # one look in 160 errs to one side, and only for thresholds close to the limit
_GAIN = 0.001  # share of the expected speed that a trial must be expected to add


@dataclass(frozen=True)
class MaxSpeed:
    """Maximises speed; feasible where the chance of passing the certification test is at least `wanted`.

    Args:
        chance: Returns a measured setting's chance of passing.
        description: Distinguishes studies that must not be mixed.
        pass_model: The normal approximation of the test, for settings that were not measured.
        lossless: Forecast tokens/s of lossless decoding, which needs no certificate.
        wanted: Smallest chance of passing of a feasible trial.
    """

    chance: Chance
    description: str
    pass_model: PassModel
    lossless: float
    wanted: float = 0.8

    @lru_cache(maxsize=4)  # noqa: B019  # the loop, the sampler and each untried arm call it with equal arguments
    def propose(self, history: History, space: Space, forecast: Forecast) -> Point | None:
        """Proposes the setting with the highest acquisition value; running trials are assumed to show what is
        predicted."""
        settings = all_settings(space, forecast).corrected(history.trials, forecast)
        prospects = Prospects(settings, self._observations(history), self.pass_model, self.lossless)
        evaluated = {Point(t.arm, t.logit_share) for t in history.trials}.union(history.running)
        # Repeating a trial would show nothing new.
        new = np.array([settings.point(i) not in evaluated for i in range(len(settings))])
        improvements = np.where(new, prospects.improvements, 0.0)
        at = int(improvements.argmax())
        return settings.point(at) if improvements[at] >= _GAIN * prospects.expected.max() else None

    def reason_untried(self, arm: Setting, history: History, space: Space, forecast: Forecast) -> str:
        if self.propose(history, space, forecast) is not None:
            return "the trials ran out"
        return f"no trial of it was expected to add {_GAIN:.1%} to the speed that can be certified"

    def assess(self, fuzzy: Measurement, target: Measurement, whole: int, forecast: Forecast) -> Assessment:
        chance = self.chance(fuzzy, target)
        settled = self._is_settled(fuzzy, target, whole, chance)
        return Assessment(forecast.measured(fuzzy), self.wanted - chance, settled)

    def _is_settled(self, fuzzy: Measurement, target: Measurement, whole: int, chance: float) -> bool:
        """Whether only an unusually good or bad remainder of the problems could reverse the decision."""
        additional, fewer = plausible_flips(flips(fuzzy, target), fuzzy.problems, whole, _DEVIATIONS)
        if chance >= self.wanted:
            return self.chance(with_losses(fuzzy, target, additional), target) >= self.wanted
        return self.chance(with_gains(fuzzy, target, fewer), target) < self.wanted

    def freeze(
        self,
        trials: Sequence[FinishedTrial],
        space: Space,
        evaluator: Evaluator,
        target: Measurement,
        forecast: Forecast,
    ) -> list[Setting]:
        """Returns the sequence with the highest expected certified speed.

        Where no test is worthwhile, the one setting faster than lossless decoding that is most likely to pass is
        returned, as an estimate; empty where nothing is faster.
        """
        if not trials:
            return []
        prospects = measure_candidates(trials, space, evaluator, target, forecast, self.pass_model, self.lossless)
        faster = np.flatnonzero(prospects.settings.speeds > self.lossless).tolist()
        chosen = choose_sequence(prospects) or sorted(faster, key=lambda i: -prospects.chances[i])[:1]
        return [setting_at(forecast, prospects.settings.point(i)) for i in chosen]

    def _observations(self, history: History) -> list[Observation]:
        """Returns what finished trials showed and what running ones are predicted to show."""
        observed = [t.observation for t in history.trials]
        if not history.running:
            return observed
        settings = settings_at(history.running)
        predicted = Prospects(settings, observed, self.pass_model, self.lossless)
        changes = (predicted.posterior.mean - self.pass_model.lossless) / self.pass_model.per_change
        return observed + [
            Observation(*point, change, flipped, self.pass_model.tuning)
            for point, change, flipped in zip(
                history.running, changes.tolist(), predicted.flipped.tolist(), strict=True
            )
        ]
