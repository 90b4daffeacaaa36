"""`Rates`: the tokens per second λ at each T, which price a draft step; `dinkelbach.py` finds them."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import numpy as np

from fsd_collectors.replay.cost import CostModel
from fsd_common.errors import UsageError
from fsd_predictors.features.features import Value


@dataclass(frozen=True)
class Rates:
    """λ by T, and the costs it was found with.

    Args:
        shares: thresholds as logit(u), strictly rising.
        tokens_per_second: λ at each share; interpolated between shares, constant beyond them.
        costs: seconds c of a draft step, v of a verification and Δv of a verified position.
    """

    shares: tuple[float, ...]
    tokens_per_second: tuple[float, ...]
    costs: CostModel

    def __post_init__(self) -> None:
        rising = all(one < other for one, other in zip(self.shares, self.shares[1:], strict=False))
        if not self.shares or not rising or not all(map(math.isfinite, self.shares)):
            raise UsageError(f"shares are {self.shares!r:.80}; they must be finite, rising numbers, at least one")
        rates = self.tokens_per_second
        if len(rates) != len(self.shares) or not all(0.0 <= rate < math.inf for rate in rates):
            raise UsageError(f"tokens_per_second are {rates!r:.80}; give a finite number of 0 or more for each share")

    @property
    def identity(self) -> str:
        return repr((self.shares, self.tokens_per_second, asdict(self.costs)))

    def worth(self, share: Value) -> Value:
        """Returns λ(c + Δv): the tokens that the time of a draft step and of its verified position would bring."""
        rate: Value = np.interp(share, self.shares, self.tokens_per_second)
        return rate * (self.costs.draft_step + self.costs.position)
