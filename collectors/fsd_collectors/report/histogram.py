"""Histograms of non-negative float32 values over the fixed bins of `float_bins.py`.

There are 128 bins an octave, one for each bfloat16. The middle of a bin is within `RELATIVE_ERROR` of its values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fsd_collectors.float_bins import FloatBins

BINS = FloatBins(kept=7)
RELATIVE_ERROR = 2.0 ** -(BINS.kept + 1)  # of quantiles; below 1e-38 the absolute error is 1e-40

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Histogram:
    """A histogram; `counts` (BINS.count,) are the numbers of values in each bin."""

    counts: Counts

    @property
    def total(self) -> int:
        """Number of values other than NaN and null; infinity counts."""
        return int(self.counts[: BINS.infinite + 1].sum())

    @property
    def infinite(self) -> int:
        return int(self.counts[BINS.infinite])

    @property
    def missing(self) -> int:
        """Number of values that are NaN or null."""
        return int(self.counts[BINS.infinite + 1 :].sum())

    @property
    def at_most(self) -> Counts:
        """(BINS.count,) number of values <= BINS.edges; after infinity's bin, missing values are included."""
        return self.counts.cumsum()

    def quantiles(self, shares: Sequence[float]) -> list[float]:
        """Returns quantiles as numpy's `inverted_cdf`, within RELATIVE_ERROR; NaN where there are no values."""
        if not self.total:
            return [float("nan")] * len(shares)
        ranks = np.maximum(np.asarray(shares) * self.total, 1.0)
        return [float(value) for value in BINS.middles[np.searchsorted(self.at_most, ranks)]]
