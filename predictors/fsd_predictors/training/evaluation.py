"""Evaluation of a predictor on problems that neither fitted nor calibrated its models.

Three forecasts are evaluated (see docs/predictor.md): a, that a drafted token is accepted; b, that the next one would
be; S, the product of a draft's a, that all of its tokens so far are accepted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np

from fsd_predictors.datasets.rows import Rows
from fsd_predictors.datasets.texts import Texts
from fsd_predictors.facts import Quality
from fsd_predictors.features.features import FEATURES, Array, Drafted, RoundContext, feature_values, matrix
from fsd_predictors.models.base import AcceptanceModel
from fsd_predictors.models.metrics import auc, bins, calibration_error
from fsd_predictors.training.reliability import Curve

Name = Literal["a", "b", "S"]
Point = tuple[str, float]  # a divergence and a threshold on it

STEPS = 8  # draft positions that are reported one by one


@dataclass(frozen=True)
class Forecasts:
    """n forecasts at one point, and the outcomes they are compared with.

    Args:
        forecast: (n,) forecast probability of acceptance.
        accepted: (n,) bool, the outcome.
        step: (n,) position of the token in its draft, from 1.
        probability: (n,) q of the token; for S the product over the draft.
        entropy: (n,) entropy of q, in nats; for S the sum over the draft.
    """

    forecast: Array
    accepted: Array
    step: Array
    probability: Array
    entropy: Array

    def where(self, mask: Array) -> Forecasts:
        return Forecasts(*(getattr(self, field.name)[mask] for field in fields(self)))


@dataclass(frozen=True)
class StepQuality:
    """Quality of a forecast at one position of the draft, over all points; `mean` is the mean forecast."""

    forecast: Name
    step: int
    rows: int
    accepted: float
    mean: float
    auc: float | None
    error: float


@dataclass(frozen=True)
class Evaluation:
    """Quality by forecast and threshold, by forecast and draft position, and reliability curves by forecast."""

    reached: tuple[Quality, ...]
    steps: tuple[StepQuality, ...]
    curves: Mapping[Name, Sequence[Curve]]


def make_forecasts(
    accepting: AcceptanceModel, following: AcceptanceModel, rows: Mapping[Point, Rows], texts: Texts
) -> dict[Name, dict[Point, Forecasts]]:
    """Returns the forecasts a (by `accepting`), b (by `following`) and S on the rows of each point."""
    return {
        "a": {point: _forecasts_a(accepting, each) for point, each in rows.items()},
        "b": {point: _forecasts_b(following, each) for point, each in rows.items()},
        "S": {point: _forecasts_s(accepting, each, point, texts) for point, each in rows.items()},
    }


def evaluate(forecasts: Mapping[Name, Mapping[Point, Forecasts]]) -> Evaluation:
    """Evaluates the forecasts by threshold, by draft position, and as reliability curves."""
    return Evaluation(
        tuple(_quality(name, point, each) for name, points in forecasts.items() for point, each in points.items()),
        tuple(quality for name, points in forecasts.items() for quality in _by_step(name, list(points.values()))),
        {name: [_curve(point, each) for point, each in points.items()] for name, points in forecasts.items()},
    )


def survival_forecasts(
    model: AcceptanceModel, first: Array, problem: Array, point: Point, texts: Texts, steps: int
) -> Forecasts:
    """Forecasts S at every step of r rounds.

    As in decoding, a draft goes on past its first rejected token, which drafting cannot know. What it would draft
    there is taken from the target's text: traces along the target hold nothing else. So S is evaluated wherever the
    stopping rule reads it, rejected drafts included. A round ends with its text, at a token that ends the text, or
    after `steps` tokens.

    Args:
        model: forecasts a.
        first: (r, features) of the rounds' first tokens.
        problem: (r,) ids.
    """
    base = texts.rows(problem, _column(first, "position"))
    context, end, accepted = _context(first), texts.ends(base), texts.accepted(*point)
    going, alive = np.ones(len(base), bool), np.ones(len(base), bool)
    chance, probability, entropy = np.ones(len(base)), np.ones(len(base)), np.zeros(len(base))
    drafted: list[Drafted] = []
    parts: list[tuple[Array, ...]] = []
    for step in range(steps):
        going &= base + step < end
        rows = np.minimum(base + step, end - 1)
        drafted.append(now := texts.drafted(rows))
        values = matrix([*feature_values(drafted, context), *texts.state(rows)])
        chance = chance * model.predict_proba(values)[:, 1]
        probability, entropy = probability * now.probability, entropy + now.entropy
        alive &= accepted[rows]
        columns = (chance, alive, np.full(len(base), step + 1), probability, entropy)
        parts.append(tuple(column[going] for column in columns))
        going &= now.ends == 0
    return Forecasts(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _forecasts_a(model: AcceptanceModel, rows: Rows) -> Forecasts:
    return _forecasts(model, rows.accepting, rows.accepted, _column(rows.accepting, "step"))


def _forecasts_b(model: AcceptanceModel, rows: Rows) -> Forecasts:
    return _forecasts(model, rows.next, rows.next_accepted, _column(rows.next, "step") + 1)


def _forecasts(model: AcceptanceModel, values: Array, accepted: Array, step: Array) -> Forecasts:
    probability, entropy = _column(values, "probability"), _column(values, "entropy")
    return Forecasts(model.predict_proba(values)[:, 1], accepted, step, probability, entropy)


def _forecasts_s(model: AcceptanceModel, rows: Rows, point: Point, texts: Texts) -> Forecasts:
    first = _column(rows.accepting, "step") == 1
    return survival_forecasts(model, rows.accepting[first], rows.problem[first], point, texts, STEPS)


def _context(first: Array) -> RoundContext:
    """Reads the rounds' context back from the features of their first tokens."""
    share, divergence, position, spared, refused = (
        _column(first, name) for name in ("share", "divergence", "position", "spared", "refused")
    )
    back = tuple(_column(first, f"accepted_{number}_back") for number in (1, 2, 3))
    return RoundContext(position, share, divergence, back, spared, refused)


def _column(values: Array, name: str) -> Array:
    return np.asarray(values[:, FEATURES.index(name)])


def _quality(name: Name, point: Point, each: Forecasts) -> Quality:
    return Quality(
        forecast=name, divergence=point[0], threshold=point[1], rows=len(each.forecast),
        accepted=float(each.accepted.mean()), auc=_auc(each.accepted, each.forecast),
        probability_auc=_best_auc(each.accepted, each.probability),
        entropy_auc=_best_auc(each.accepted, each.entropy),
        error=calibration_error(each.accepted, each.forecast),
    )  # fmt: skip


def _by_step(name: Name, forecasts: Sequence[Forecasts]) -> Iterator[StepQuality]:
    columns = ([getattr(each, field.name) for each in forecasts] for field in fields(Forecasts))
    pooled = Forecasts(*map(np.concatenate, columns))
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


def _auc(accepted: Array, score: Array) -> float | None:
    """Returns None where all rows are of one class."""
    return None if accepted.all() or not accepted.any() else auc(accepted, score)


def _best_auc(accepted: Array, score: Array) -> float | None:
    """Returns the AUC of a rival in the direction, high or low, that is better on these very rows."""
    high = _auc(accepted, score)
    return None if high is None else max(high, 1 - high)
