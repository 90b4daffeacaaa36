"""What a model looks at: how much each feature moves its forecasts.

Knows LightGBM's own contributions, and for other models permutation. Knows no names of features.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.metrics import log_loss

from fsd_predictors.features.features import Array
from fsd_predictors.models.base import AcceptanceModel
from fsd_predictors.models.boosted import Boosted
from fsd_predictors.models.calibration import Calibrated

MOST_ROWS = 4000


@dataclass(frozen=True)
class Importance:
    """shares (features,): they add up to 1, unless nothing moves the forecast. meaning: what they are shares of."""

    names: tuple[str, ...]
    shares: Array
    meaning: str


CONTRIBUTIONS = (
    "the mean size of a feature's contribution to the logit (LightGBM's pred_contrib, Tree SHAP of Lundberg et al. "
    "2020), as a share of all"
)
PERMUTATION = (
    "how much the log loss grows where a feature's values are shuffled (Breiman 2001), as a share of all; features "
    "that tell the same share what they tell"
)


def importance(model: AcceptanceModel, names: tuple[str, ...], rows: Array, accepted: Array, seed: int) -> Importance:
    """Of each feature, by its name; rows (n, features) and (n,) bool. The last name is of all columns that are left."""
    random = np.random.default_rng(seed)
    chosen = random.permutation(len(rows))[:MOST_ROWS]
    inner = model.model if isinstance(model, Calibrated) else model
    if isinstance(inner, Boosted):
        sizes, meaning = _contributions(inner, rows[chosen]), CONTRIBUTIONS
    else:
        sizes, meaning = _permuted(model, len(names), rows[chosen], accepted[chosen], random), PERMUTATION
    return Importance(names, sizes / max(sizes.sum(), np.finfo(float).tiny), meaning)


def _contributions(model: Boosted, rows: Array) -> Array:
    told = np.asarray(model.booster_.predict(rows, pred_contrib=True))
    sizes: Array = np.abs(told[:, :-1]).mean(0)  # the last is the same for all rows
    return sizes


def _permuted(model: AcceptanceModel, count: int, rows: Array, accepted: Array, random: np.random.Generator) -> Array:
    def loss(given: Array) -> float:
        return float(log_loss(accepted, model.predict_proba(given)[:, 1], labels=[False, True]))

    before = loss(rows)
    parts = [*(slice(column, column + 1) for column in range(count - 1)), slice(count - 1, None)]
    return np.array([max(0.0, loss(_shuffled(rows, part, random)) - before) for part in parts])


def _shuffled(rows: Array, columns: slice, random: np.random.Generator) -> Array:
    other = rows.copy()
    other[:, columns] = random.permutation(rows[:, columns])
    return other
