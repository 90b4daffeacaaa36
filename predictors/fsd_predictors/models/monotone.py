"""Piecewise linear functions of numbers, and the bounded logistic regression that fits their slopes.

A function is non-decreasing where no slope is below 0: bounding the weights of `pieces` from below makes it so.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
from scipy.optimize import Bounds, minimize
from scipy.special import expit

from fsd_predictors.models.base import Array


def pieces(values: Array, knots: Array) -> Array:
    """Returns the columns (n, k + 1) whose weights are the slopes of a piecewise linear function of the values.

    Args:
        values: (n,).
        knots: (k,) rising; the first and the last piece extend to infinity.
    """
    low, high = np.append(-np.inf, knots), np.append(knots, np.inf)
    start = np.append(knots[0], knots)  # where each piece counts from
    within: Array = np.clip(values[:, None], low, high) - start
    return within


def knots_of(values: Array, count: int) -> Array:
    """Returns up to `count` distinct knots, at quantiles from .001 to .999 of the values."""
    return np.unique(np.quantile(values, np.linspace(0.001, 0.999, count)))


class Ramp:
    """A piecewise linear function that is 0 at its first knot.

    Args:
        knots: k rising numbers.
        slopes: k + 1 slopes: before the first knot, between the knots and after the last.
    """

    def __init__(self, knots: Sequence[float], slopes: Sequence[float]) -> None:
        self.knots, self.slopes = list(knots), list(slopes)
        rises = np.diff(self.knots) * self.slopes[1:-1]
        heights = np.cumsum([0.0, 0.0, *rises])  # value at the knot that each piece is measured from
        starts = [self.knots[0], *self.knots]
        self._bases: list[float] = (heights - np.multiply(self.slopes, starts)).tolist()

    def __call__(self, value: float) -> float:
        piece = bisect_right(self.knots, value)
        return self._bases[piece] + self.slopes[piece] * value

    def of(self, values: Array) -> Array:
        """Evaluates the function at values (n,)."""
        piece = np.searchsorted(self.knots, values, side="right")
        risen: Array = np.asarray(self._bases)[piece] + np.asarray(self.slopes)[piece] * values
        return risen

    def numbers(self) -> tuple[list[float], list[float]]:
        """Returns the arguments that make the same function, for JSON."""
        return self.knots, self.slopes


def fit_weights(
    columns: Array, accepted: Array, centre: Array, lowest: Array, penalty: float, counts: Array | None = None
) -> Array:
    """Fits the weights (k,) of a logistic regression under lower bounds.

    Minimises the mean log loss + penalty/2 · |weights − centre|² over weights >= lowest, a convex problem.

    Args:
        columns: (n, k).
        accepted: (n,) bool labels.
        centre: (k,) weights that the penalty pulls towards.
        lowest: (k,) lower bounds; -inf for none.
        counts: (n,) how much each row counts; None: all alike.
    """
    target = accepted.astype(np.float64)
    shares = np.full(len(target), 1 / len(target)) if counts is None else counts / counts.sum()

    def loss(weights: Array) -> tuple[float, npt.NDArray[np.float64]]:
        logits, off = columns @ weights, weights - centre
        mean = float(shares @ (np.logaddexp(0, logits) - target * logits))
        slope = columns.T @ (shares * (expit(logits) - target))
        return mean + penalty / 2 * float(off @ off), slope + penalty * off

    found = minimize(
        loss, np.maximum(centre, lowest), jac=True, method="L-BFGS-B", bounds=Bounds(lb=lowest),
        options={"maxiter": 500, "ftol": 1e-10, "gtol": 1e-7},
    )  # fmt: skip
    return np.asarray(found.x)


@dataclass(frozen=True)
class Encoding:
    """Maps rows (n, features) to (n, width): each column clipped to each of its pieces, standardised.

    All fields are (width,), one entry for each piece.
    """

    column: Array  # index of the piece's column
    low: Array  # where the piece begins
    high: Array  # where it ends
    mean: Array
    spread: Array  # standard deviation

    @classmethod
    def of(cls, rows: Array, columns: Sequence[int], count: int) -> Self:
        """Fits the encoding of these columns, each with up to `count` knots; 0 leaves a column linear."""
        knots = [knots_of(rows[:, column], count) if count else np.empty(0) for column in columns]
        column = np.repeat(np.array(columns, int), [len(each) + 1 for each in knots])
        low = np.concatenate([np.empty(0), *(np.append(-np.inf, each) for each in knots)])
        high = np.concatenate([np.empty(0), *(np.append(each, np.inf) for each in knots)])
        raw = np.clip(rows[:, column], low, high)
        spread = raw.std(0)
        return cls(column, low, high, raw.mean(0), np.where(spread > 0, spread, 1.0))

    def __call__(self, rows: Array) -> Array:
        # np.clip would take longer for one row: its checks cost more than the work
        standard: Array = (np.minimum(np.maximum(rows[:, self.column], self.low), self.high) - self.mean) / self.spread
        return standard

    def ramps(self, weights: Array) -> list[Ramp]:
        """Returns, for each column, its contribution under weights (width,) as a function, up to a constant."""
        slopes = weights / self.spread
        each = [self.column == column for column in dict.fromkeys(self.column.tolist())]
        return [Ramp(self.high[own][:-1].tolist(), slopes[own].tolist()) for own in each]

    def arrays(self, name: str) -> dict[str, Array]:
        """Returns the fields as named arrays for a file; `from_arrays` reads them."""
        return {f"{name}.{field}": each for field, each in asdict(self).items()}

    @classmethod
    def from_arrays(cls, arrays: dict[str, Array], name: str) -> Self:
        return cls(*(arrays[f"{name}.{field}"] for field in ("column", "low", "high", "mean", "spread")))
