"""What a round costs, so that counted rounds become tokens a second.

Knows three durations and arithmetic. Knows neither how they were measured nor how rounds were counted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

from fsd_decoding.errors import UsageError


@dataclass(frozen=True)
class CostModel:
    """A round that drafts d tokens takes d·draft_step + verify + (d + 1)·position: c, v and Δv of the design.

    Args:
        draft_step: seconds the draft takes for one token.
        verify: seconds one verification takes, whatever its length.
        position: seconds that every verified position adds to it.
    """

    draft_step: float
    verify: float
    position: float = 0.0

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self)):
            value = getattr(self, name)
            if not 0.0 <= value < math.inf:
                raise UsageError(f"{name} is {value!r}; it must be a finite number of seconds, 0 or more")
        if self.verify + self.position == 0.0:
            raise UsageError("verify and position are both 0; a verification takes time, so give at least one of them")

    def seconds(self, rounds: Any, drafted: Any) -> Any:
        """Time for so many rounds that drafted so many tokens in all; numbers or arrays."""
        return drafted * self.draft_step + rounds * self.verify + (drafted + rounds) * self.position

    def tokens_per_second(self, tokens: Any, rounds: Any, drafted: Any) -> Any:
        """Of one stream; numbers or arrays."""
        return tokens / self.seconds(rounds, drafted)
