"""Hyperparameter search for the models of acceptance, by Optuna (Akiba et al. 2019)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import optuna
from sklearn.metrics import log_loss

from fsd_common.errors import UsageError
from fsd_predictors.models.base import Array
from fsd_predictors.models.registry import MODELS

Space = Callable[[optuna.Trial], dict[str, Any]]

_VALIDATION_SHARE = 0.25  # of the problems


def tune(
    kind: str,
    X: npt.ArrayLike,  # noqa: N803  # scikit-learn's name
    y: npt.ArrayLike,
    groups: npt.ArrayLike,
    trials: int,
    seed: int,
    fixed: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns the settings for `MODELS[kind](**settings)` with the least log loss on held-out problems.

    Args:
        kind: key of `MODELS`.
        X: (n, features).
        y: (n,) whether the row's token was accepted.
        groups: (n,) the row's problem; no problem is in both the training and the validation rows.
        trials: Optuna trials, of which the first takes the defaults; 0 returns the defaults at once.
        seed: seed of the validation split and of the sampler.
        fixed: settings that every trial has; they are not part of the result.

    Raises:
        UsageError: the kind is unknown, or the rows are of fewer than two problems.
    """
    if kind not in MODELS:
        raise UsageError(f"kind is {kind!r}; it must be one of {', '.join(MODELS)}")
    if not trials:
        return {}
    rows, accepted = np.asarray(X, np.float64), np.asarray(y, bool)
    validation = validation_rows(np.asarray(groups), seed)

    def loss(trial: optuna.Trial) -> float:
        model = MODELS[kind](**SPACES[kind](trial), **fixed or {}).fit(rows[~validation], accepted[~validation])
        return float(log_loss(accepted[validation], model.predict_proba(rows[validation]), labels=[False, True]))

    return best_settings(loss, trials, seed, MODELS[kind]().get_params())


def best_settings(
    loss: Callable[[optuna.Trial], float], trials: int, seed: int, defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the settings with the least loss, of so many trials by TPE, of which the first takes the defaults."""
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
        study.enqueue_trial(dict(defaults))
        study.optimize(loss, n_trials=trials)
    finally:
        optuna.logging.set_verbosity(verbosity)
    return dict(study.best_params)


def validation_rows(groups: Array, seed: int) -> Array:
    """Returns a mask (n,) of the validation rows: all rows of a quarter of the problems, but of at least one."""
    problems, group = np.unique(groups, return_inverse=True)
    if len(problems) < 2:
        raise UsageError(
            f"the rows are of {len(problems)} problem; tuning needs at least 2, one of them for validation: add traces"
        )
    chosen = np.random.default_rng(seed).permutation(len(problems)) < max(1, len(problems) * _VALIDATION_SHARE)
    rows: Array = chosen[group]
    return rows


def _boosted(trial: optuna.Trial) -> dict[str, Any]:
    return {  # the number of trees is left out: it decides the time of a prediction while decoding
        "leaves": trial.suggest_int("leaves", 15, 127, log=True),
        "learning_rate": trial.suggest_float("learning_rate", 0.05, 0.5, log=True),
        "rows_a_leaf": trial.suggest_int("rows_a_leaf", 20, 500, log=True),
        "l2": trial.suggest_float("l2", 0.1, 100.0, log=True),
    }


def _logistic(trial: optuna.Trial) -> dict[str, Any]:
    return {"knots": trial.suggest_int("knots", 3, 12), "l2": trial.suggest_float("l2", 1e-7, 1e-2, log=True)}


def _mlp(trial: optuna.Trial) -> dict[str, Any]:
    return {
        "width": trial.suggest_int("width", 16, 128, log=True),
        "knots": trial.suggest_int("knots", 3, 12),
        "learning_rate": trial.suggest_float("learning_rate", 3e-4, 3e-2, log=True),
        "weight_decay": trial.suggest_float("weight_decay", 1e-6, 1e-1, log=True),
    }


SPACES: dict[str, Space] = {"logistic": _logistic, "boosted": _boosted, "head": _mlp}
