"""What a setting must show to be certified, as far as a normal law tells: how far above the wish, and how likely.

Knows a wish, the sizes of both parts and the level. Knows nothing of settings, speeds or searching.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Bar:
    """How high a setting must come, and how much chance there is in where it comes.

    Of a setting it knows `change`, its accuracy less that of the target on the same problems, and `flipped`, the
    variance of that difference for one problem: losses plus gains where a problem has one seed.

    Args:
        wanted: retention, or accuracy where `absolute`.
        accuracy: of the target, on the tuning part.
        tuning, certification: problems of the parts.
        delta: the level of the test.
    """

    wanted: float
    accuracy: float
    tuning: int
    certification: int
    delta: float
    absolute: bool = False

    @property
    def lossless(self) -> float:
        """What a setting shows that changes nothing."""
        return self.accuracy if self.absolute else 1.0

    def shown(self, change: Any) -> Any:
        """Retention or accuracy of a setting."""
        return self.lossless + self.per_change * change

    @property
    def per_change(self) -> float:
        """What is shown less where one problem more is lost, in problems."""
        return 1.0 if self.absolute or not self.accuracy else 1 / self.accuracy

    def certified_deviation(self, flipped: Floats) -> Floats:
        """Of what is shown on the certification part where the truth is what is wanted, by which the test goes: of the
        mean of B - wanted A, or of B."""
        if self.absolute:
            binomial = self.wanted * (1 - self.wanted) + 1 / self.certification
            return np.full_like(flipped, math.sqrt(binomial / self.certification))
        variance = flipped + (1 - self.wanted) ** 2 * self.accuracy
        return self.per_change * np.sqrt((variance + 1 / self.certification) / self.certification)

    @property
    def common_deviation(self) -> float:
        """Of the tuning part's luck that all settings share: that of the target's own accuracy, where it counts."""
        return math.sqrt(self.accuracy * (1 - self.accuracy) / self.tuning) if self.absolute else 0.0

    def needed(self, flipped: Floats) -> Floats:
        """What must be shown on the certification part."""
        return self.wanted + float(ndtri(1 - self.delta)) * self.certified_deviation(flipped)

    def chance(self, mean: Floats, deviation: Floats, flipped: Floats) -> Floats:
        """Of passing, where the truth is believed to be normal about `mean`."""
        spread = np.hypot(np.hypot(deviation, self.common_deviation), self.certified_deviation(flipped))
        return np.asarray(ndtr((mean - self.needed(flipped)) / spread))
