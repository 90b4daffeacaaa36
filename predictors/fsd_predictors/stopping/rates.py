"""What time is worth at each T: tokens a second, and the seconds that drafting and verifying take.

Knows numbers by T. How they are found on traces is in `dinkelbach.py`.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import numpy as np

from fsd_collectors.replay.cost import CostModel
from fsd_decoding.errors import UsageError
from fsd_predictors.features.features import Value


@dataclass(frozen=True)
class Rates:
    """λ of the design, frozen (section 12).

    shares: T as logit(u), rising. tokens_per_second: one a share; between shares it is interpolated, beyond them the
    nearest counts. costs: c and Δv (and v, which λ was found with).
    """

    shares: tuple[float, ...]
    tokens_per_second: tuple[float, ...]
    costs: CostModel

    def __post_init__(self) -> None:
        rising = all(one < other for one, other in zip(self.shares, self.shares[1:], strict=False))
        if not self.shares or not rising or not all(map(math.isfinite, self.shares)):
            raise UsageError(f"shares are {self.shares!r:.80}; they must be finite numbers that rise, one at least")
        given = self.tokens_per_second
        if len(given) != len(self.shares) or not all(0.0 <= one < math.inf for one in given):
            raise UsageError(f"tokens_per_second are {given!r:.80}; give a finite number of 0 or more for each share")

    @property
    def identity(self) -> str:
        return repr((self.shares, self.tokens_per_second, asdict(self.costs)))

    def worth(self, share: Value) -> Value:
        """Tokens that the time of a draft step and of its position would bring, λ(c + Δv)."""
        rate: Value = np.interp(share, self.shares, self.tokens_per_second)
        return rate * (self.costs.draft_step + self.costs.position)
