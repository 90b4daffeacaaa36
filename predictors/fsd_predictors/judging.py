"""Forecasts of a predictor's models on problems of their own, with what came true.

Knows rounds as `rows.py` lays them, and the models. What to make of the forecasts is `evaluating.py`'s.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fsd_predictors.evaluating import STEPS, Judged, Name, Point
from fsd_predictors.features import FEATURES, Array
from fsd_predictors.models import AcceptanceModel
from fsd_predictors.rows import Rows
from fsd_predictors.surviving import survival
from fsd_predictors.texts import Texts


def judged(
    accepting: AcceptanceModel, following: AcceptanceModel, laid: Mapping[Point, Rows], texts: Texts
) -> dict[Name, dict[Point, Judged]]:
    """Forecasts a, b and S on the rounds laid at each point."""
    return {
        "a": {point: _of_a(accepting, rows) for point, rows in laid.items()},
        "b": {point: _of_b(following, rows) for point, rows in laid.items()},
        "S": {point: _of_s(accepting, rows, point, texts) for point, rows in laid.items()},
    }


def _of_a(model: AcceptanceModel, rows: Rows) -> Judged:
    step, probability = (rows.accepting[:, FEATURES.index(name)] for name in ("step", "probability"))
    return _judged(model, rows.accepting, rows.accepted, step, probability)


def _of_b(model: AcceptanceModel, rows: Rows) -> Judged:
    step, probability = (rows.next[:, FEATURES.index(name)] for name in ("step", "probability"))
    return _judged(model, rows.next, rows.next_accepted, step + 1, probability)


def _of_s(model: AcceptanceModel, rows: Rows, point: Point, texts: Texts) -> Judged:
    first = rows.accepting[:, FEATURES.index("step")] == 1
    return survival(model, rows.accepting[first], rows.problem[first], point, texts, STEPS)


def _judged(model: AcceptanceModel, given: Array, accepted: Array, step: Array, probability: Array) -> Judged:
    entropy = np.asarray(given[:, FEATURES.index("entropy")])
    return Judged(model.predict_proba(given)[:, 1], accepted, step, probability, entropy)
