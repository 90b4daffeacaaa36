"""Columns as pieces of themselves, so that what is linear in them can bend (Gorishniy et al. 2022, arXiv 2203.05556).

Knows which columns, where their pieces end, and means and spreads, from the rows of a fit. Knows not what is made of
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Self

import numpy as np

from fsd_predictors.models.base import Array
from fsd_predictors.models.monotone import Ramp, knots_of


@dataclass(frozen=True)
class Encoding:
    """(n, features) to (n, width), standardised: what lies of a column within each of its pieces.

    All fields: (width,).
    """

    column: Array
    low: Array  # where the piece begins
    high: Array
    mean: Array
    spread: Array

    @classmethod
    def of(cls, rows: Array, columns: Sequence[int], count: int) -> Self:
        """Of those columns, each with up to `count` knots; 0: straight."""
        knots = [knots_of(rows[:, column], count) if count else np.empty(0) for column in columns]
        column = np.repeat(np.array(columns, int), [len(each) + 1 for each in knots])
        low = np.concatenate([np.empty(0), *(np.append(-np.inf, each) for each in knots)])
        high = np.concatenate([np.empty(0), *(np.append(each, np.inf) for each in knots)])
        raw = np.clip(rows[:, column], low, high)
        spread = raw.std(0)
        return cls(column, low, high, raw.mean(0), np.where(spread > 0, spread, 1.0))

    def __call__(self, rows: Array) -> Array:
        # not np.clip, whose checks take longer than its work where there is one row
        standard: Array = (np.minimum(np.maximum(rows[:, self.column], self.low), self.high) - self.mean) / self.spread
        return standard

    def ramps(self, weights: Array) -> list[Ramp]:
        """Of each column, what these (width,) weights make of it, but for a constant."""
        slopes = weights / self.spread
        each = [self.column == column for column in dict.fromkeys(self.column.tolist())]
        return [Ramp(self.high[own][:-1].tolist(), slopes[own].tolist()) for own in each]

    def arrays(self, name: str) -> dict[str, Array]:
        """For a file, under a name; `from_arrays` reads them."""
        return {f"{name}.{field}": each for field, each in asdict(self).items()}

    @classmethod
    def from_arrays(cls, arrays: dict[str, Array], name: str) -> Self:
        return cls(*(arrays[f"{name}.{field}"] for field in ("column", "low", "high", "mean", "spread")))
