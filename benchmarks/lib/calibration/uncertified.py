"""Other ways to choose a setting on the same problems, without a certificate and without reuse of decodings.

They are a table of thresholds, bisection, and Optuna's TPE, each in its simplest form. A setting is feasible where its
retention on the given problems is at least what is wanted. All receive T_max, which they would have to find out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import optuna

from fsd_calib.measuring.evaluator import Evaluator
from fsd_calib.search.space import Space
from fsd_calib.tasks.base import Problem
from fsd_decoding.profile.setting import Setting
from lib.calibration.pool import TARGET, CountingPool

_TABLE = 20  # thresholds
_HALVINGS = 8
TRIALS = 30


class Estimates:
    """Estimates of settings on some problems, and those that are feasible by their estimate."""

    def __init__(self, decode: CountingPool, problems: Sequence[Problem], wanted: float) -> None:
        self._evaluator, self._wanted, self._decode = Evaluator(decode, problems, "tuning"), wanted, decode
        self._solved = self._evaluator.measure(TARGET).correct.sum()
        self.feasible: dict[Setting, float] = {}  # with their tokens/s

    def is_feasible(self, configuration: Setting) -> bool:
        measured = self._evaluator.measure(configuration)
        if measured.correct.sum() < self._wanted * self._solved:
            return False
        costs = self._decode.pool.costs
        speed = costs.tokens_per_second(measured.tokens, measured.rounds, measured.drafted)
        self.feasible[configuration] = float(speed)
        return True

    def fastest(self) -> Setting | None:
        return max(self.feasible, key=lambda configuration: self.feasible[configuration], default=None)


def table(estimates: Estimates, arm: Setting, most: float) -> Setting | None:
    """Tries evenly spaced thresholds of one arm."""
    for threshold in most * np.arange(1, _TABLE + 1) / _TABLE:
        estimates.is_feasible(arm.at(float(threshold)))
    return estimates.fastest()


def bisection(estimates: Estimates, space: Space, most: Mapping[str, float]) -> Setting | None:
    """Seeks the largest feasible threshold of every arm by halving [0, T_max]."""
    for arm in (arm for family in space.families for arm in family):
        low, high = 0.0, most[arm.divergence]
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if estimates.is_feasible(arm.at(middle)) else (low, middle)
    return estimates.fastest()


def tpe(estimates: Estimates, space: Space, most: Mapping[str, float], seed: int) -> Setting | None:
    """Runs an Optuna study over all arms and T as a share of T_max, with retention as a constraint."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))

    def objective(trial: optuna.Trial) -> float:
        divergence = trial.suggest_categorical("divergence", space.divergences)
        length = trial.suggest_categorical("draft_length", space.draft_lengths)
        threshold = most[divergence] * trial.suggest_float("threshold", 0.0, 1.0)
        configuration = Setting(space.rules[0], divergence, length, threshold)
        trial.set_constraint("retention", 0.0 if estimates.is_feasible(configuration) else 1.0)
        return estimates.feasible.get(configuration, 0.0)

    study.optimize(objective, n_trials=TRIALS)
    return estimates.fastest()
