"""How good forecasts are, on problems that neither fitted nor calibrated them.

Knows forecasts, what came true, and by what they are grouped. What the measures are is `models.metrics`'s; how
forecasts come about is `judging.py`'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np

from fsd_predictors.datasets.rows import Rows
from fsd_predictors.datasets.texts import Texts
from fsd_predictors.facts import Quality
from fsd_predictors.features.features import FEATURES, Array, Drafted, Place, known, matrix
from fsd_predictors.models.base import AcceptanceModel
from fsd_predictors.models.metrics import auc, bins, calibration_error
from fsd_predictors.training.reliability import Curve

# MERGED: """S_j, the chance that all of a draft's first j tokens are accepted, as the stopping rule multiplies it up.
#
# Knows features of rounds. A round goes on here behind its first rejected token too, as drafting does, which cannot know:
# with what the draft says along the target's text, since no such trace knows what it would have gone on to. So S is
# judged where the rule reads it, rejected drafts included.
# """
# MERGED: """Forecasts of a predictor's models on problems of their own, with what came true.
#
# Knows rounds as `rows.py` lays them, and the models. What to make of the forecasts is `evaluating.py`'s.
# """


Name = Literal["a", "b", "S"]
Point = tuple[str, float]  # a divergence, and T

STEPS = 8  # of a draft, that are told one by one


@dataclass(frozen=True)
class Forecasts:
    """n forecasts at one point, what came true, and where in the draft: (n,) each. probability, entropy: of q there."""

    forecast: Array
    accepted: Array
    step: Array
    probability: Array
    entropy: Array

    def where(self, chosen: Array) -> Forecasts:
        return Forecasts(*(getattr(self, field.name)[chosen] for field in fields(self)))


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


def evaluate(judged: Mapping[Name, Mapping[Point, Forecasts]]) -> Evaluation:
    """By T, by step, and as curves."""
    return Evaluation(
        tuple(_quality(name, point, each) for name, points in judged.items() for point, each in points.items()),
        tuple(quality for name, points in judged.items() for quality in _by_step(name, list(points.values()))),
        {name: [_curve(point, each) for point, each in points.items()] for name, points in judged.items()},
    )


def _quality(name: Name, point: Point, each: Forecasts) -> Quality:
    return Quality(
        forecast=name, divergence=point[0], threshold=point[1], rows=len(each.forecast),
        accepted=float(each.accepted.mean()), auc=_auc(each.accepted, each.forecast),
        probability_auc=_auc(each.accepted, each.probability), entropy_auc=_auc(each.accepted, -each.entropy),
        error=calibration_error(each.accepted, each.forecast),
    )  # fmt: skip


def _by_step(name: Name, judged: Sequence[Forecasts]) -> Iterator[StepQuality]:
    pooled = Forecasts(*(np.concatenate([getattr(each, field.name) for each in judged]) for field in fields(Forecasts)))
    for step in np.unique(pooled.step[pooled.step <= STEPS]).tolist():
        part = pooled.where(pooled.step == step)
        yield StepQuality(
            name, int(step), len(part.forecast), float(part.accepted.mean()), float(part.forecast.mean()),
            _auc(part.accepted, part.forecast), calibration_error(part.accepted, part.forecast),
        )  # fmt: skip


def _curve(point: Point, each: Forecasts) -> Curve:
    name, threshold = point
    label = f"{name}, lossless" if threshold < 0 else f"{name} ≤ {threshold:.3g}"
    return Curve(label, *bins(each.accepted, each.forecast))


def _auc(accepted: Array, by: Array) -> float | None:
    """None where there is nothing to put in order."""
    return None if accepted.all() or not accepted.any() else auc(accepted, by)


def survival(model: AcceptanceModel, first: Array, problem: Array, point: Point, texts: Texts, steps: int) -> Forecasts:
    """S at every step of r rounds, by the features of their first tokens (r, features) and their problems (r,).

    Beside it, for probability and entropy, stand the product and the sum of theirs. A round ends with its text, behind
    a token that ends one, or after so many steps.
    """
    base = texts.rows(problem, _column(first, "position"))
    place, end, accepted = _place(first), texts.ends(base), texts.accepted(*point)
    going, alive = np.ones(len(base), bool), np.ones(len(base), bool)
    chance, probability, entropy = np.ones(len(base)), np.ones(len(base)), np.zeros(len(base))
    drafted: list[Drafted] = []
    told: list[tuple[Array, ...]] = []
    for step in range(steps):
        going &= base + step < end
        rows = np.minimum(base + step, end - 1)
        drafted.append(now := texts.drafted(rows))
        values = matrix([*known(drafted, place), *texts.state(rows)])
        chance = chance * model.predict_proba(values)[:, 1]
        probability, entropy = probability * now.probability, entropy + now.entropy
        alive &= accepted[rows]
        told.append(tuple(each[going] for each in (chance, alive, np.full(len(base), step + 1), probability, entropy)))
        going &= now.ends == 0
    return Forecasts(*(np.concatenate(column) for column in zip(*told, strict=True)))


def _place(first: Array) -> Place:
    share, divergence, position, spared, refused = (
        _column(first, name) for name in ("share", "divergence", "position", "spared", "refused")
    )
    back = tuple(_column(first, f"accepted_{number}_back") for number in (1, 2, 3))
    return Place(position, share, divergence, back, spared, refused)


def _column(first: Array, name: str) -> Array:
    return np.asarray(first[:, FEATURES.index(name)])


def judged(
    accepting: AcceptanceModel, following: AcceptanceModel, laid: Mapping[Point, Rows], texts: Texts
) -> dict[Name, dict[Point, Forecasts]]:
    """Forecasts a, b and S on the rounds laid at each point."""
    return {
        "a": {point: _of_a(accepting, rows) for point, rows in laid.items()},
        "b": {point: _of_b(following, rows) for point, rows in laid.items()},
        "S": {point: _of_s(accepting, rows, point, texts) for point, rows in laid.items()},
    }


def _of_a(model: AcceptanceModel, rows: Rows) -> Forecasts:
    step, probability = (rows.accepting[:, FEATURES.index(name)] for name in ("step", "probability"))
    return _judged(model, rows.accepting, rows.accepted, step, probability)


def _of_b(model: AcceptanceModel, rows: Rows) -> Forecasts:
    step, probability = (rows.next[:, FEATURES.index(name)] for name in ("step", "probability"))
    return _judged(model, rows.next, rows.next_accepted, step + 1, probability)


def _of_s(model: AcceptanceModel, rows: Rows, point: Point, texts: Texts) -> Forecasts:
    first = rows.accepting[:, FEATURES.index("step")] == 1
    return survival(model, rows.accepting[first], rows.problem[first], point, texts, STEPS)


def _judged(model: AcceptanceModel, given: Array, accepted: Array, step: Array, probability: Array) -> Forecasts:
    entropy = np.asarray(given[:, FEATURES.index("entropy")])
    return Forecasts(model.predict_proba(given)[:, 1], accepted, step, probability, entropy)
