"""The goal of a calibration: the wanted accuracy or speed, and the confidence of the certificate."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from numbers import Real
from typing import Any, Literal, TypedDict, get_args

from fsd_common.errors import UsageError
from fsd_decoding.config_keywords import check_type, override

MAX_MIN_ACC = 1.2

Acc = Literal["retention", "absolute"]
Guarantee = Literal["population", "dataset"]
Test = Literal["score", "betting"]


@dataclass(frozen=True)
class Goal:
    """The goal of a calibration: an accuracy to keep, a speed to reach, or the Pareto front.

    Args:
        min_acc: accuracy to keep, see `acc`.
        min_speed: speed to reach, in tokens/s of one stream.
        pareto: find the whole Pareto front. Give exactly one of `min_acc`, `min_speed` and `pareto`.
        acc: meaning of `min_acc`: "retention", a share of the target's accuracy on the same problems, or "absolute".
        confidence: confidence level of the certificate.
        guarantee: scope of the certificate: "population", problems like these; "dataset", exactly these problems.
        test: "score" decides once, on all certification problems; "betting" may decide earlier.
        serve_batch: streams decoded at once when speed is measured.
        explore: estimate on the tuning part alone: nothing is tested, no attempt is spent, nothing is certified.
    """

    min_acc: float | None = None
    min_speed: float | None = None
    pareto: bool = False
    acc: Acc = "retention"
    confidence: float = 0.95
    guarantee: Guarantee = "population"
    test: Test = "score"
    serve_batch: int = 1
    explore: bool = False

    @classmethod
    def of(cls, goal: Goal | None, keywords: dict[str, Any]) -> Goal:
        """Returns `goal` with fields replaced by `keywords`, or a new goal from `keywords`; removes those used."""
        goal = check_type("goal", goal, cls)
        if goal is not None:
            return override(goal, keywords)
        return cls(**{f.name: keywords.pop(f.name) for f in fields(cls) if f.name in keywords})

    def __post_init__(self) -> None:
        if [self.min_acc is not None, self.min_speed is not None, self.pareto].count(True) != 1:
            raise UsageError("give exactly one of --min-acc, --min-speed and --pareto")
        _check_choice("--acc", self.acc, get_args(Acc))
        _check_choice("--guarantee", self.guarantee, get_args(Guarantee))
        _check_choice("--test", self.test, get_args(Test))
        for name in ("min_acc", "min_speed", "confidence"):
            if getattr(self, name) is not None:
                _check_number(f"--{name.replace('_', '-')}", getattr(self, name))
        if self.min_acc is not None:
            _check_accuracy(self.min_acc, MAX_MIN_ACC if self.acc == "retention" else 1.0)
        if self.min_speed is not None and not 0 < self.min_speed < math.inf:
            raise UsageError(f"--min-speed is {self.min_speed}; it must be a number of tokens/s above 0")
        if not 0 < self.confidence < 1:
            raise UsageError(f"--confidence is {self.confidence}; it must be between 0 and 1, such as 0.95")
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
    explore: bool


def _check_number(option: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise UsageError(f"{option} is {value!r}; it must be a number")


def _check_choice(option: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UsageError(f"{option} is {value!r}; it must be one of {', '.join(known)}")


def _check_accuracy(value: float, most: float) -> None:
    if not 0 < value <= most:
        raise UsageError(f"--min-acc is {value}; it must be above 0 and at most {most:g} (0.98 is 98 %)")
