"""The cost model: seconds of a round, which turn counted rounds into tokens per second."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

from fsd_common.errors import UsageError


@dataclass(frozen=True)
class CostModel:
    """A round that drafts d tokens takes d·draft_step + verify + (d + 1)·position seconds.

    docs/predictor.md writes c, v and Δv for the three.

    Args:
        draft_step: seconds that the draft takes for one token.
        verify: seconds of one verification, whatever its length.
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
            raise UsageError("verify and position are both 0; a verification takes time: give at least one of them")

    def seconds(self, rounds: Any, drafted: Any) -> Any:
        """Returns the seconds of `rounds` rounds that draft `drafted` tokens in all; numbers or arrays."""
        return drafted * self.draft_step + rounds * self.verify + (drafted + rounds) * self.position

    def tokens_per_second(self, tokens: Any, rounds: Any, drafted: Any) -> Any:
        """Returns the tokens per second of one stream; numbers or arrays."""
        return tokens / self.seconds(rounds, drafted)
