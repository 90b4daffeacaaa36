"""Feature importance: Tree SHAP contributions for boosted trees, permutation importance for other models."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.metrics import log_loss

from fsd_predictors.features.features import Array
from fsd_predictors.models.base import AcceptanceModel
from fsd_predictors.models.boosted import Boosted
from fsd_predictors.models.calibration import Calibrated

MOST_ROWS = 4000  # a random sample of so many rows is used


@dataclass(frozen=True)
class Importance:
    """Importance of each feature of a model.

    Args:
        names: names of the features.
        shares: (features,) importances, which add up to 1, or are all 0 where no feature moves the forecast.
        meaning: what is measured, for people.
    """

    names: tuple[str, ...]
    shares: Array
    meaning: str


CONTRIBUTIONS = (
    "mean absolute contribution of a feature to the logit (LightGBM's pred_contrib, Tree SHAP of Lundberg et al. "
    "2020), as a share of the total"
)
PERMUTATION = (
    "increase of the log loss when the feature's values are permuted (Breiman 2001), as a share of the total; "
    "correlated features share their importance"
)


def importance(model: AcceptanceModel, names: tuple[str, ...], rows: Array, accepted: Array, seed: int) -> Importance:
    """Returns the importance of each named feature.

    Args:
        model: fitted model, calibrated or not.
        names: names of the columns; the last one stands for all remaining columns together.
        rows: (n, features).
        accepted: (n,) bool.
    """
    random = np.random.default_rng(seed)
    chosen = random.permutation(len(rows))[:MOST_ROWS]
    inner = model.model if isinstance(model, Calibrated) else model
    if isinstance(inner, Boosted):
        sizes, meaning = _contributions(inner, rows[chosen]), CONTRIBUTIONS
    else:
        sizes, meaning = _permuted(model, len(names), rows[chosen], accepted[chosen], random), PERMUTATION
    return Importance(names, sizes / max(sizes.sum(), np.finfo(float).tiny), meaning)


def _contributions(model: Boosted, rows: Array) -> Array:
    contributions = np.asarray(model.booster_.predict(rows, pred_contrib=True))
    sizes: Array = np.abs(contributions[:, :-1]).mean(0)  # the last column is the expected value, equal in all rows
    return sizes


def _permuted(model: AcceptanceModel, count: int, rows: Array, accepted: Array, random: np.random.Generator) -> Array:
    def loss(values: Array) -> float:
        return float(log_loss(accepted, model.predict_proba(values)[:, 1], labels=[False, True]))

    before = loss(rows)
    parts = [*(slice(column, column + 1) for column in range(count - 1)), slice(count - 1, None)]
    return np.array([max(0.0, loss(_shuffled(rows, part, random)) - before) for part in parts])


def _shuffled(rows: Array, columns: slice, random: np.random.Generator) -> Array:
    other = rows.copy()
    other[:, columns] = random.permutation(rows[:, columns])
    return other
