"""Other ways to choose a setting on the same problems, without a certificate and without reuse of decodings.

Knows the usual table, uniform bisection and Optuna's TPE, each as one would write it down first. All are told T_max,
which they would have to find out; a setting holds where it keeps the wanted retention on the problems looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import optuna

from fsd_calib.measuring.configuration import Configuration
from fsd_calib.measuring.evaluator import Evaluator
from fsd_calib.search.space import Space
from fsd_calib.tasks.base import Problem
from lib.calibration.pooled import TARGET, Counted

_TABLE = 20  # thresholds
_HALVINGS = 8
TRIALS = 30


class Looked:
    """Problems on which settings are judged by what they show."""

    def __init__(self, decode: Counted, problems: Sequence[Problem], wanted: float) -> None:
        self._bench, self._wanted, self._decode = Evaluator(decode, problems, "tuning"), wanted, decode
        self._solved = self._bench.measure(TARGET).correct.sum()
        self.good: dict[Configuration, float] = {}  # tokens/s of those that hold

    def holds(self, configuration: Configuration) -> bool:
        measured = self._bench.measure(configuration)
        if measured.correct.sum() < self._wanted * self._solved:
            return False
        costs = self._decode.pool.costs
        speed = costs.tokens_per_second(measured.tokens, measured.rounds, measured.drafted)
        self.good[configuration] = float(speed)
        return True

    def fastest(self) -> Configuration | None:
        return max(self.good, key=lambda configuration: self.good[configuration], default=None)


def table(looked: Looked, arm: Configuration, most: float) -> Configuration | None:
    """Evenly spaced thresholds of one arm."""
    for threshold in most * np.arange(1, _TABLE + 1) / _TABLE:
        looked.holds(arm.at(float(threshold)))
    return looked.fastest()


def bisection(looked: Looked, space: Space, most: Mapping[str, float]) -> Configuration | None:
    """Of every arm the largest threshold, by halving [0, T_max]."""
    for arm in (arm for family in space.families for arm in family):
        low, high = 0.0, most[arm.divergence]
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if looked.holds(arm.at(middle)) else (low, middle)
    return looked.fastest()


def tpe(looked: Looked, space: Space, most: Mapping[str, float], seed: int) -> Configuration | None:
    """T as a share of T_max, with retention as a constraint."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))

    def objective(trial: optuna.Trial) -> float:
        divergence = trial.suggest_categorical("divergence", space.divergences)
        length = trial.suggest_categorical("draft_length", space.draft_lengths)
        threshold = most[divergence] * trial.suggest_float("threshold", 0.0, 1.0)
        configuration = Configuration(space.rules[0], divergence, length, threshold)
        trial.set_constraint("retention", 0.0 if looked.holds(configuration) else 1.0)
        return looked.good.get(configuration, 0.0)

    study.optimize(objective, n_trials=TRIALS)
    return looked.fastest()
