"""Logistic regression that is non-decreasing in T, with a dependence on T that varies with the other features.

Two convex fits: first a score s(x) of all columns but the share, a sum of piecewise linear functions; then
logit = Σ_m h_m(s)·g_m(share), where each g_m is non-decreasing and the hat functions h_m >= 0 interpolate between
levels of s.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import ClassVar, Self

import numpy as np

from fsd_predictors.models.base import AcceptanceModel, Array, Parts
from fsd_predictors.models.monotone import Encoding, Ramp, fit_weights, knots_of, pieces

_ROWS = 100_000  # a sample of so many is enough for some hundred weights
_SHARE_KNOTS = 7
_LEVELS = (0.01, 0.05, 0.15, 0.3, 0.5, 0.7, 0.85, 0.95, 0.99)  # quantiles of s


class Logistic(AcceptanceModel):
    """Logistic regression on piecewise linear functions.

    Args:
        knots: knots of each column's function.
        l2: L2 penalty on the weights of standardised columns.
    """

    kind: ClassVar[str] = "logistic"

    def __init__(self, share: int = 0, knots: int = 8, l2: float = 1e-4) -> None:
        self.share = share
        self.knots = knots
        self.l2 = l2

    score_: list[Ramp]  # s is their sum, one for each column but the share
    levels_: list[float]  # levels of s
    starts_: list[float]  # logit at each level, at the first knot of the share
    rises_: list[Ramp]  # rise of the logit with the share, at each level

    def _fit(self, rows: Array, accepted: Array) -> None:
        if len(rows) > _ROWS:
            chosen = np.random.default_rng(0).choice(len(rows), _ROWS, replace=False)
            rows, accepted = rows[chosen], accepted[chosen]
        self._fit_score(rows, accepted)
        self._fit_logit(rows, accepted)

    def _fit_score(self, rows: Array, accepted: Array) -> None:
        """Fits s together with a function of the share, which is then dropped."""
        others = [column for column in range(rows.shape[1]) if column != self.share]
        encoding, rising = Encoding.of(rows, others, self.knots), Encoding.of(rows, [self.share], _SHARE_KNOTS)
        own, other = encoding(rows), rising(rows)
        columns = np.column_stack([np.ones(len(rows)), own, other])
        lowest = np.append(np.full(1 + own.shape[1], -np.inf), np.zeros(other.shape[1]))
        weights = fit_weights(columns, accepted, np.zeros(len(lowest)), lowest, self.l2)
        self.score_ = encoding.ramps(weights[1 : 1 + own.shape[1]])

    def _fit_logit(self, rows: Array, accepted: Array) -> None:
        """Fits the levels of s and the function g of each."""
        others, share = self._divided(rows)
        score, knots = self._score(others), knots_of(share, _SHARE_KNOTS)
        levels = np.unique(np.quantile(score, _LEVELS)).tolist()
        self.levels_ = levels if len(levels) > 1 else [levels[0], levels[0] + 1]
        near, parts = self._hats(score), pieces(share, knots)
        columns = np.column_stack([near, (near[:, :, None] * parts[:, None, :]).reshape(len(rows), -1)])
        count = len(self.levels_)
        lowest = np.append(np.full(count, -np.inf), np.zeros(columns.shape[1] - count))
        weights = fit_weights(columns, accepted, np.zeros(len(lowest)), lowest, self.l2)
        self.starts_ = weights[:count].tolist()
        self.rises_ = [Ramp(knots.tolist(), each.tolist()) for each in weights[count:].reshape(count, -1)]

    def _divided(self, rows: Array) -> tuple[Array, Array]:
        return np.delete(rows, self.share, axis=1), rows[:, self.share]

    def _score(self, others: Array) -> Array:
        score = np.zeros(len(others))
        for ramp, column in zip(self.score_, others.T, strict=True):
            score += ramp.of(column)
        return score

    def _hats(self, score: Array) -> Array:
        """Returns the hat functions (n, levels) of the scores (n,): piecewise linear weights that sum to 1."""
        return np.column_stack([np.interp(score, self.levels_, each) for each in np.eye(len(self.levels_))])

    def logits(self, rows: Array) -> Array:
        others, share = self._divided(rows)
        heights = self.starts_ + np.column_stack([rise.of(share) for rise in self.rises_])
        blended: Array = (self._hats(self._score(others)) * heights).sum(1)
        return blended

    def logit(self, values: Sequence[float]) -> float:
        others, share = list(values), values[self.share]
        del others[self.share]
        score = 0.0
        for ramp, value in zip(self.score_, others, strict=True):
            score += ramp(value)
        levels = self.levels_
        above = min(max(bisect_right(levels, score), 1), len(levels) - 1)
        weight = min(max((score - levels[above - 1]) / (levels[above] - levels[above - 1]), 0.0), 1.0)
        return (1 - weight) * self._height(above - 1, share) + weight * self._height(above, share)

    def _height(self, level: int, share: float) -> float:
        return self.starts_[level] + self.rises_[level](share)

    def parts(self) -> Parts:
        numbers = {
            "kind": self.kind, "parameters": self.get_params(), "features": self.n_features_in_,
            "score": [ramp.numbers() for ramp in self.score_], "levels": self.levels_, "starts": self.starts_,
            "rises": [ramp.numbers() for ramp in self.rises_],
        }  # fmt: skip
        return Parts(numbers)

    @classmethod
    def from_parts(cls, parts: Parts) -> Self:
        numbers = parts.numbers
        model = cls(**numbers["parameters"])
        model.n_features_in_ = numbers["features"]
        model.score_, model.rises_ = ([Ramp(*each) for each in numbers[name]] for name in ("score", "rises"))
        model.levels_, model.starts_ = numbers["levels"], numbers["starts"]
        return model
