"""Piecewise linear encoding of numeric features (Gorishniy et al. 2022, arXiv 2203.05556)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Self

import numpy as np

from fsd_predictors.models.base import Array
from fsd_predictors.models.monotone import Ramp, knots_of


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
