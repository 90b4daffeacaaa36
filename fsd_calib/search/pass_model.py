"""A normal approximation of the certification test: the probability that a setting passes it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class PassModel:
    """The certification test on a part of a given size, approximated by the normal law.

    A setting is described by two numbers: `change`, its accuracy minus the target's on the same problems, and
    `flipped`, the variance of that difference for one problem (losses plus gains as shares of problems, where a
    problem has one seed).

    Args:
        wanted: Retention to certify, or accuracy where `absolute`.
        accuracy: The target's, on the tuning part.
        tuning: Number of problems of the tuning part.
        certification: Number of problems of the certification part.
        delta: Significance level of the test.
        absolute: The claim is about the accuracy itself, not about retention.
    """

    wanted: float
    accuracy: float
    tuning: int
    certification: int
    delta: float
    absolute: bool = False

    @property
    def lossless(self) -> float:
        """The retention or accuracy of a setting that changes no answer."""
        return self.accuracy if self.absolute else 1.0

    def shown(self, change: Any) -> Any:
        """Returns the retention or accuracy that belongs to a change in accuracy."""
        return self.lossless + self.per_change * change

    @property
    def per_change(self) -> float:
        """How much retention or accuracy falls per unit of accuracy lost."""
        return 1.0 if self.absolute or not self.accuracy else 1 / self.accuracy

    def certified_deviation(self, flipped: Floats) -> Floats:
        """Returns the standard deviation of the test statistic on the certification part, where the truth is `wanted`.

        The statistic is the mean of B - wanted A (A, B: target and setting solve the problem), or of B where
        `absolute`.
        """
        if self.absolute:
            binomial = self.wanted * (1 - self.wanted) + 1 / self.certification
            return np.full_like(flipped, math.sqrt(binomial / self.certification))
        variance = flipped + (1 - self.wanted) ** 2 * self.accuracy
        return self.per_change * np.sqrt((variance + 1 / self.certification) / self.certification)

    @property
    def common_deviation(self) -> float:
        """Standard deviation of the tuning part's sampling noise that all settings share: that of the target's own
        accuracy, where the claim is absolute."""
        return math.sqrt(self.accuracy * (1 - self.accuracy) / self.tuning) if self.absolute else 0.0

    def needed(self, flipped: Floats) -> Floats:
        """Returns the retention or accuracy that the certification part must show for the test to pass."""
        return self.wanted + float(ndtri(1 - self.delta)) * self.certified_deviation(flipped)

    def chance(self, mean: Floats, deviation: Floats, flipped: Floats) -> Floats:
        """Returns the probability of passing, where the true value has a normal law with `mean` and `deviation`."""
        spread = np.hypot(np.hypot(deviation, self.common_deviation), self.certified_deviation(flipped))
        return np.asarray(ndtr((mean - self.needed(flipped)) / spread))
