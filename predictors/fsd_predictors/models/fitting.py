"""Logistic regression with bounds: the one fit behind `Logistic` and every calibration.

Knows the loss and its gradient. Knows not what columns mean.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.optimize import Bounds, minimize
from scipy.special import expit

from fsd_predictors.models.base import Array


def fit_weights(columns: Array, accepted: Array, centre: Array, lowest: Array, penalty: float) -> Array:
    """(n, k) and (n,) bool to (k,): least mean log loss + penalty/2 · |weights − centre|², weights >= lowest.

    Convex: one answer. The weights of standardised columns are penalised alike.
    """
    target = accepted.astype(np.float64)

    def loss(weights: Array) -> tuple[float, npt.NDArray[np.float64]]:
        logits, off = columns @ weights, weights - centre
        mean = float(np.mean(np.logaddexp(0, logits) - target * logits))
        slope = columns.T @ (expit(logits) - target) / len(target)
        return mean + penalty / 2 * float(off @ off), slope + penalty * off

    found = minimize(
        loss, np.maximum(centre, lowest), jac=True, method="L-BFGS-B", bounds=Bounds(lb=lowest),
        options={"maxiter": 500, "ftol": 1e-10, "gtol": 1e-7},
    )  # fmt: skip
    return np.asarray(found.x)
