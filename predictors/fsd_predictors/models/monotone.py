"""Piecewise linear functions of one number: non-decreasing where no slope is below 0.

Knows knots, slopes, and how to evaluate them, of arrays and of one number alike. Knows not how slopes are found.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.optimize import Bounds, minimize
from scipy.special import expit

from fsd_predictors.models.base import Array

# MERGED: """Logistic regression with bounds: the one fit behind `Logistic` and every calibration.
#
# Knows the loss and its gradient. Knows not what columns mean.
# """


def pieces(values: Array, knots: Array) -> Array:
    """(n,) and (k,) to (n, k + 1): how far each value goes within each piece, measured from the first knot.

    A weight on a column is the function's slope in that piece; the first and the last have no end.
    """
    low, high = np.append(-np.inf, knots), np.append(knots, np.inf)
    start = np.append(knots[0], knots)  # where each piece counts from
    within: Array = np.clip(values[:, None], low, high) - start
    return within


def knots_of(values: Array, count: int) -> Array:
    """Up to `count` knots at quantiles of the values, as many as differ; little lies outside them."""
    return np.unique(np.quantile(values, np.linspace(0.001, 0.999, count)))


class Ramp:
    """0 at the first knot; `slopes`, one more than the `knots`: before, between and behind them."""

    def __init__(self, knots: Sequence[float], slopes: Sequence[float]) -> None:
        self.knots, self.slopes = list(knots), list(slopes)
        rises = np.diff(self.knots) * self.slopes[1:-1]
        heights = np.cumsum([0.0, 0.0, *rises])  # at the knot that each piece counts from
        starts = [self.knots[0], *self.knots]
        self._bases: list[float] = (heights - np.multiply(self.slopes, starts)).tolist()

    def __call__(self, value: float) -> float:
        piece = bisect_right(self.knots, value)
        return self._bases[piece] + self.slopes[piece] * value

    def of(self, values: Array) -> Array:
        """(n,) to (n,)."""
        piece = np.searchsorted(self.knots, values, side="right")
        risen: Array = np.asarray(self._bases)[piece] + np.asarray(self.slopes)[piece] * values
        return risen

    def numbers(self) -> tuple[list[float], list[float]]:
        """What makes the same again."""
        return self.knots, self.slopes


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
