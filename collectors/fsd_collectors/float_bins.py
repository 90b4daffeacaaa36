"""Bins for float32 values that are never negative, on a log scale fixed beforehand.

A bin is the values whose leading bits agree: exponent and some of the mantissa. Positive floats are ordered as their
bits are, so these bits number the bins in order, no range has to be known before the data, and finding a bin takes a
shift instead of a logarithm. Knows nothing of traces, nor what is counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float32]

_MANTISSA = 23  # bits
_EXPONENTS = 1 << 8


@dataclass(frozen=True)
class FloatBins:
    """2^kept bins an octave from 1e-38 to 3e38; one for infinity, those behind it for NaN.

    kept: leading bits of the mantissa, 0 to 22. A bin is at most 2^-kept as wide as its least value; below 1e-38,
    where float32 itself is coarse, 2^-kept times 1e-38.
    """

    kept: int

    @property
    def count(self) -> int:
        return _EXPONENTS << self.kept

    @property
    def infinite(self) -> int:
        """Infinity's bin."""
        return (_EXPONENTS - 1) << self.kept

    def of(self, values: Values) -> NDArray[np.uint32]:
        """(N,) -> (N,) numbers of bins; -0.0 is 0."""
        return (values.view(np.uint32) & np.uint32(0x7FFFFFFF)) >> np.uint32(self._dropped)

    @cached_property
    def edges(self) -> Values:
        """(count,) each bin's largest value: D <= edges[i] is exactly "in bin i or before"."""
        return self._with((1 << self._dropped) - 1)

    @cached_property
    def middles(self) -> Values:
        """(count,) within 2^-(kept + 1) of every value in their bins; zero's is 0."""
        middles = self._with(1 << (self._dropped - 1))
        middles[0] = 0.0
        return middles

    @property
    def _dropped(self) -> int:
        return _MANTISSA - self.kept

    def _with(self, lower_bits: int) -> Values:
        bits = np.arange(self.count, dtype=np.uint32) << np.uint32(self._dropped)
        values = (bits | np.uint32(lower_bits)).view(np.float32)
        values[self.infinite], values[self.infinite + 1 :] = np.inf, np.nan
        return values
