"""What a user asks a calibration for. Knows which wishes make sense, and nothing of how they are met."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fsd_decoding.errors import UsageError

MAX_MIN_ACC = 1.2


@dataclass(frozen=True)
class Wish:
    """Exactly one of a retention (accuracy over the target's) and a speed (tokens/s of one stream)."""

    min_acc: float | None = None
    min_speed: float | None = None
    confidence: float = 0.95

    def __post_init__(self) -> None:
        if (self.min_acc is None) == (self.min_speed is None):
            raise UsageError("give --min-acc or --min-speed: exactly one says what to look for")
        if self.min_acc is not None and not 0 < self.min_acc <= MAX_MIN_ACC:
            raise UsageError(
                f"--min-acc is {self.min_acc}; it must be above 0 and at most {MAX_MIN_ACC} (0.98 keeps 98 %)"
            )
        if self.min_speed is not None and not 0 < self.min_speed < math.inf:
            raise UsageError(f"--min-speed is {self.min_speed}; it must be a number of tokens/s above 0")
        if not 0 < self.confidence < 1:
            raise UsageError(f"--confidence is {self.confidence}; it must lie between 0 and 1, as 0.95 does")
