"""What a user asks a calibration for. Knows which wishes make sense, and nothing of how they are met."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from fsd_decoding.errors import UsageError

MAX_MIN_ACC = 1.2

Acc = Literal["retention", "absolute"]
Guarantee = Literal["population", "dataset", "none"]
Test = Literal["score", "betting"]


@dataclass(frozen=True)
class Goal:
    """Exactly one of an accuracy to keep, a speed to reach (tokens/s of one stream), and the whole front.

    Args:
        acc: what `min_acc` is: a share of the target's accuracy on the same problems, or an accuracy by itself.
        guarantee: of what the certificate speaks: problems like these, these very ones, or nothing (no test).
        test: "score" decides on all certification problems at once, "betting" may stop before.
        serve_batch: streams at a time, where speed is measured.
    """

    min_acc: float | None = None
    min_speed: float | None = None
    pareto: bool = False
    acc: Acc = "retention"
    confidence: float = 0.95
    guarantee: Guarantee = "population"
    test: Test = "score"
    serve_batch: int = 1

    def __post_init__(self) -> None:
        if [self.min_acc is not None, self.min_speed is not None, self.pareto].count(True) != 1:
            raise UsageError("give --min-acc, --min-speed or --pareto: exactly one says what to look for")
        _check_choice("--acc", self.acc, get_args(Acc))
        _check_choice("--guarantee", self.guarantee, get_args(Guarantee))
        _check_choice("--test", self.test, get_args(Test))
        if self.min_acc is not None:
            _check_accuracy(self.min_acc, MAX_MIN_ACC if self.acc == "retention" else 1.0)
        if self.min_speed is not None and not 0 < self.min_speed < math.inf:
            raise UsageError(f"--min-speed is {self.min_speed}; it must be a number of tokens/s above 0")
        if not 0 < self.confidence < 1:
            raise UsageError(f"--confidence is {self.confidence}; it must lie between 0 and 1, as 0.95 does")
        if self.serve_batch < 1:
            raise UsageError(f"--serve-batch is {self.serve_batch}; it must be at least 1")


def _check_choice(option: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UsageError(f"{option} is {value!r}; it must be one of {', '.join(known)}")


def _check_accuracy(value: float, most: float) -> None:
    if not 0 < value <= most:
        raise UsageError(f"--min-acc is {value}; it must be above 0 and at most {most:g} (0.98 is 98 %)")
