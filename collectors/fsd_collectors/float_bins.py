"""Logarithmic bins for non-negative float32 values, fixed before any data are seen.

A bin holds the values that agree in their leading bits: the exponent and some bits of the mantissa. Positive floats are
ordered like their bits, so these bits number the bins in rising order, no range has to be known in advance, and
finding a bin takes a shift instead of a logarithm.
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
    """2^kept bins per octave from 1e-38 to 3e38, then one for infinity and the rest for NaN.

    The relative width of a bin is at most 2^-kept; below 1e-38, where float32 itself is coarse, its absolute width is
    at most 2^-kept · 1e-38.

    Args:
        kept: number of leading bits of the mantissa that tell bins apart, 0 to 22.
    """

    kept: int

    @property
    def count(self) -> int:
        return _EXPONENTS << self.kept

    @property
    def infinite(self) -> int:
        """Index of the bin of infinity."""
        return (_EXPONENTS - 1) << self.kept

    def of(self, values: Values) -> NDArray[np.uint32]:
        """Returns the bin indices (N,) of values (N,); -0.0 counts as 0."""
        return (values.view(np.uint32) & np.uint32(0x7FFFFFFF)) >> np.uint32(self._dropped)

    @cached_property
    def edges(self) -> Values:
        """(count,) largest value of each bin: D <= edges[i] holds exactly for the values in bins 0 to i."""
        return self._with((1 << self._dropped) - 1)

    @cached_property
    def middles(self) -> Values:
        """(count,) middle of each bin, within a relative 2^-(kept + 1) of all its values; that of the first is 0."""
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
