"""The best settings of a kind of model, by Optuna (Akiba et al. 2019), on problems that did not fit it.

Knows what each kind lets one choose. Knows neither features nor calibration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import optuna
from sklearn.metrics import log_loss

from fsd_decoding.errors import UsageError
from fsd_predictors.models.base import Array
from fsd_predictors.models.registry import MODELS

Space = Callable[[optuna.Trial], dict[str, Any]]

_JUDGING = 0.25  # of the problems


def tune(
    kind: str,
    X: npt.ArrayLike,  # noqa: N803  # scikit-learn's name
    y: npt.ArrayLike,
    groups: npt.ArrayLike,
    trials: int,
    seed: int,
    given: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The settings of least log loss, for `MODELS[kind](**settings)`: the defaults are among those tried.

    given: settings that all have, and that are not told again.
    X (n, features), y (n,), groups (n,): a row's problem; no problem both fits and judges. No trials: the defaults.
    UsageError: no such kind, or fewer than two problems.
    """
    if kind not in MODELS:
        raise UsageError(f"kind is {kind!r}; it must be one of {', '.join(MODELS)}")
    if not trials:
        return {}
    rows, accepted = np.asarray(X, np.float64), np.asarray(y, bool)
    judging = judged(np.asarray(groups), seed)

    def loss(trial: optuna.Trial) -> float:
        model = MODELS[kind](**SPACES[kind](trial), **given or {}).fit(rows[~judging], accepted[~judging])
        return float(log_loss(accepted[judging], model.predict_proba(rows[judging]), labels=[False, True]))

    return _best(loss, trials, seed, MODELS[kind]().get_params())


def _best(loss: Callable[[optuna.Trial], float], trials: int, seed: int, defaults: dict[str, Any]) -> dict[str, Any]:
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
        study.enqueue_trial(defaults)
        study.optimize(loss, n_trials=trials)
    finally:
        optuna.logging.set_verbosity(verbosity)
    return dict(study.best_params)


def judged(groups: Array, seed: int) -> Array:
    """(n,) bool: the rows that judge: all those of a quarter of the problems, of one at least."""
    problems, of = np.unique(groups, return_inverse=True)
    if len(problems) < 2:
        raise UsageError(f"the rows are of {len(problems)} problem; tuning needs 2 at least, one to judge: add traces")
    chosen = np.random.default_rng(seed).permutation(len(problems)) < max(1, len(problems) * _JUDGING)
    rows: Array = chosen[of]
    return rows


def _boosted(trial: optuna.Trial) -> dict[str, Any]:
    return {  # not the number of trees, which is what a row costs in the loop
        "leaves": trial.suggest_int("leaves", 15, 127, log=True),
        "learning_rate": trial.suggest_float("learning_rate", 0.05, 0.5, log=True),
        "rows_a_leaf": trial.suggest_int("rows_a_leaf", 20, 500, log=True),
        "l2": trial.suggest_float("l2", 0.1, 100.0, log=True),
    }


def _logistic(trial: optuna.Trial) -> dict[str, Any]:
    return {"knots": trial.suggest_int("knots", 3, 12), "l2": trial.suggest_float("l2", 1e-7, 1e-2, log=True)}


def _head(trial: optuna.Trial) -> dict[str, Any]:
    return {
        "width": trial.suggest_int("width", 16, 128, log=True),
        "knots": trial.suggest_int("knots", 3, 12),
        "learning_rate": trial.suggest_float("learning_rate", 3e-4, 3e-2, log=True),
        "weight_decay": trial.suggest_float("weight_decay", 1e-6, 1e-1, log=True),
    }


SPACES: dict[str, Space] = {"logistic": _logistic, "boosted": _boosted, "head": _head}
