"""Histograms of float32 values that are never negative, over bins fixed beforehand: see `float_bins.py`.

A bin is a bfloat16, 128 of them an octave. So its middle lies within `RELATIVE_ERROR` of every value in it.
Knows nothing of traces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fsd_collectors.float_bins import FloatBins

BINS = FloatBins(kept=7)
RELATIVE_ERROR = 2.0 ** -(BINS.kept + 1)  # of a quantile; below 1e-38, where float32 itself is coarse, 1e-40 absolutely

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Histogram:
    """`counts` (BINS.count,): values in each bin."""

    counts: Counts

    @property
    def total(self) -> int:
        """Values that are numbers; infinity is one."""
        return int(self.counts[: BINS.infinite + 1].sum())

    @property
    def infinite(self) -> int:
        return int(self.counts[BINS.infinite])

    @property
    def missing(self) -> int:
        """NaN and null."""
        return int(self.counts[BINS.infinite + 1 :].sum())

    @property
    def at_most(self) -> Counts:
        """(BINS.count,) how many values are <= BINS.edges; beyond infinity also those that are missing."""
        return self.counts.cumsum()

    def quantiles(self, shares: Sequence[float]) -> list[float]:
        """numpy's `inverted_cdf` of the numbers, within RELATIVE_ERROR; NaN where there are none."""
        if not self.total:
            return [float("nan")] * len(shares)
        ranks = np.maximum(np.asarray(shares) * self.total, 1.0)
        return [float(value) for value in BINS.middles[np.searchsorted(self.at_most, ranks)]]
