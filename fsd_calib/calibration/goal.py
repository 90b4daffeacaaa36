"""The goal of a calibration: what a user wants of speed and accuracy, and how sure."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Literal, TypedDict, get_args

from fsd_decoding.config_keywords import override
from fsd_decoding.errors import UsageError

MAX_MIN_ACC = 1.2

Acc = Literal["retention", "absolute"]
Guarantee = Literal["population", "dataset", "none"]
Test = Literal["score", "betting"]


@dataclass(frozen=True)
class Goal:
    """What a calibration is to reach: an accuracy to keep, a speed (tokens/s of one stream) or the Pareto front.

    Args:
        min_acc, min_speed, pareto: exactly one of the three.
        acc: what `min_acc` is: "retention", a share of the target's accuracy on the same problems, or "absolute".
        confidence: of the certificate.
        guarantee: what the certificate is about: "population", problems like these; "dataset", these very problems;
            "none", nothing is tested.
        test: "score" decides on all certification problems at once, "betting" may stop before.
        serve_batch: streams decoded at once where speed is measured.
    """

    min_acc: float | None = None
    min_speed: float | None = None
    pareto: bool = False
    acc: Acc = "retention"
    confidence: float = 0.95
    guarantee: Guarantee = "population"
    test: Test = "score"
    serve_batch: int = 1

    @classmethod
    def of(cls, goal: Goal | None, keywords: dict[str, Any]) -> Goal:
        """The goal with the fields that `keywords` name, or the one that they alone make; removes these from there."""
        if goal is not None:
            return override(goal, keywords)
        return cls(**{f.name: keywords.pop(f.name) for f in fields(cls) if f.name in keywords})

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


class GoalKeywords(TypedDict, total=False):
    """The fields of `Goal`, as keywords."""

    min_acc: float | None
    min_speed: float | None
    pareto: bool
    acc: Acc
    confidence: float
    guarantee: Guarantee
    test: Test
    serve_batch: int


def _check_choice(option: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UsageError(f"{option} is {value!r}; it must be one of {', '.join(known)}")


def _check_accuracy(value: float, most: float) -> None:
    if not 0 < value <= most:
        raise UsageError(f"--min-acc is {value}; it must be above 0 and at most {most:g} (0.98 is 98 %)")
