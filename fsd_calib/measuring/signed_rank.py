"""The centre of few noisy values, and its interval, by Wilcoxon's signed ranks."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def centre(values: Floats, miss: float) -> tuple[float, float, float]:
    """Returns the Hodges–Lehmann estimate, the median of the means of all pairs, and the ends of a central interval.

    The interval holds the centres that Wilcoxon's signed-rank test does not reject (Hodges and Lehmann, 1963). It is
    exact for independent values that are each symmetric about the centre, however widely each of them scatters: the
    noise may have no variance, and change from one value to the next, as it does on a busy machine.

    Args:
        miss: the probability, at most, that the interval misses the centre. Its ends are infinite where the values are
            fewer than `fewest`.
    """
    first, second = np.triu_indices(len(values))
    means = np.sort((values[first] + values[second]) / 2)
    beyond = int(np.searchsorted(_distribution(len(values)), miss / 2, side="right"))
    low, high = (float(means[beyond - 1]), float(means[-beyond])) if beyond else (-np.inf, np.inf)
    return float(np.median(means)), low, high


def fewest(miss: float) -> int:
    """Returns how many values it takes for an interval with ends: 6 where it may miss with probability .05, 8 at .01.

    The interval of n values that is widest reaches from the least to the largest, and misses with probability 2 / 2^n.
    """
    return 2 - math.frexp(miss)[1]  # 1 - log2(miss), rounded up, whatever the rounding of a logarithm


@lru_cache
def _distribution(values: int) -> Floats:
    """Returns the probabilities that the sum of the positive ranks is at most 0, 1, …, where signs are random."""
    sums = np.zeros(values * (values + 1) // 2 + 1)
    sums[0] = 1.0
    for rank in range(1, values + 1):
        sums[rank:] = (sums[rank:] + sums[:-rank]) / 2
        sums[:rank] /= 2
    return sums.cumsum()
