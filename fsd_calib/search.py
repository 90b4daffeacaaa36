"""Searches a threshold on the tuning part: bisection, with Optuna as its ledger.

Knows trials, brackets and constraints. What a trial measures is a function it is given. The search runs
in logit(u), u being the share of drafted tokens a threshold accepts: thresholds of different divergences
share no scale, and the action is above u = .9 (DESIGN section 11).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.samplers import BaseSampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState
from torch import Tensor

_PARAMETER = "logit_share"


class ShareScale:
    """u <-> T on the divergences of the tuning part: T is their quantile at u."""

    def __init__(self, divergences: Tensor) -> None:
        self._sorted = divergences  # (N,) ascending
        n = len(divergences)
        self.lowest, self.highest = logit(0.5), logit(1 - 0.5 / n)

    def threshold(self, logit_share: float) -> float:
        share = 1 / (1 + math.exp(-logit_share))
        index = min(math.ceil(share * len(self._sorted)), len(self._sorted)) - 1
        return float(self._sorted[max(index, 0)])


def logit(share: float) -> float:
    return math.log(share / (1 - share))


class BisectionSampler(BaseSampler):
    """Halves the bracket between the largest feasible and the smallest infeasible value (or the other
    way round), which it reads from the study: so it resumes, and several workers may share it."""

    def __init__(self, upward: bool) -> None:
        self._upward = upward

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return {}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> float:
        assert isinstance(param_distribution, FloatDistribution)
        low, high = param_distribution.low, param_distribution.high
        for done in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
            feasible = all(value <= 0 for value in done.constraints.values())
            if feasible == self._upward:
                low = max(low, done.params[param_name])
            else:
                high = min(high, done.params[param_name])
        return (low + high) / 2


Evaluate = Callable[[float], tuple[float, float]]
"""T -> (tokens a round, shortfall); feasible where the shortfall is <= 0."""


def search_threshold(
    evaluate: Evaluate, scale: ShareScale, *, upward: bool, trials: int, journal: Path | None
) -> Study:
    """Bisects for the last feasible threshold.

    Args:
        upward: whether the largest feasible threshold is wanted, or the smallest.
        journal: Optuna's journal file, or None for memory.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        storage=JournalStorage(JournalFileBackend(str(journal))) if journal else None,
        sampler=BisectionSampler(upward),
        direction="maximize",
    )

    def objective(trial: Trial) -> float:
        threshold = scale.threshold(trial.suggest_float(_PARAMETER, scale.lowest, scale.highest))
        tokens_per_round, shortfall = evaluate(threshold)
        trial.set_user_attr("threshold", threshold)
        trial.set_constraint("shortfall", shortfall)
        return tokens_per_round

    study.optimize(objective, n_trials=trials)
    return study
