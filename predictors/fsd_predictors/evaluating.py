"""How good forecasts are, on problems that neither fitted nor calibrated them.

Knows forecasts, what came true, and by what they are grouped. What the measures are is `models.metrics`'s; how
forecasts come about is `judging.py`'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np

from fsd_predictors.facts import Quality
from fsd_predictors.features import Array
from fsd_predictors.models.metrics import auc, bins, calibration_error
from fsd_predictors.reliability import Curve

Name = Literal["a", "b", "S"]
Point = tuple[str, float]  # a divergence, and T

STEPS = 8  # of a draft, that are told one by one


@dataclass(frozen=True)
class Judged:
    """n forecasts at one point, what came true, and where in the draft: (n,) each. probability, entropy: of q there."""

    forecast: Array
    accepted: Array
    step: Array
    probability: Array
    entropy: Array

    def where(self, chosen: Array) -> Judged:
        return Judged(*(getattr(self, field.name)[chosen] for field in fields(self)))


@dataclass(frozen=True)
class StepQuality:
    """At one step of the draft, over all points. mean: of the forecast."""

    forecast: Name
    step: int
    rows: int
    accepted: float
    mean: float
    auc: float | None
    error: float


@dataclass(frozen=True)
class Evaluation:
    reached: tuple[Quality, ...]
    steps: tuple[StepQuality, ...]
    curves: Mapping[Name, Sequence[Curve]]


def evaluate(judged: Mapping[Name, Mapping[Point, Judged]]) -> Evaluation:
    """By T, by step, and as curves."""
    return Evaluation(
        tuple(_quality(name, point, each) for name, points in judged.items() for point, each in points.items()),
        tuple(quality for name, points in judged.items() for quality in _by_step(name, list(points.values()))),
        {name: [_curve(point, each) for point, each in points.items()] for name, points in judged.items()},
    )


def _quality(name: Name, point: Point, each: Judged) -> Quality:
    return Quality(
        forecast=name, divergence=point[0], threshold=point[1], rows=len(each.forecast),
        accepted=float(each.accepted.mean()), auc=_auc(each.accepted, each.forecast),
        probability_auc=_auc(each.accepted, each.probability), entropy_auc=_auc(each.accepted, -each.entropy),
        error=calibration_error(each.accepted, each.forecast),
    )  # fmt: skip


def _by_step(name: Name, judged: Sequence[Judged]) -> Iterator[StepQuality]:
    pooled = Judged(*(np.concatenate([getattr(each, field.name) for each in judged]) for field in fields(Judged)))
    for step in np.unique(pooled.step[pooled.step <= STEPS]).tolist():
        part = pooled.where(pooled.step == step)
        yield StepQuality(
            name, int(step), len(part.forecast), float(part.accepted.mean()), float(part.forecast.mean()),
            _auc(part.accepted, part.forecast), calibration_error(part.accepted, part.forecast),
        )  # fmt: skip


def _curve(point: Point, each: Judged) -> Curve:
    name, threshold = point
    label = f"{name}, lossless" if threshold < 0 else f"{name} ≤ {threshold:.3g}"
    return Curve(label, *bins(each.accepted, each.forecast))


def _auc(accepted: Array, by: Array) -> float | None:
    """None where there is nothing to put in order."""
    return None if accepted.all() or not accepted.any() else auc(accepted, by)
