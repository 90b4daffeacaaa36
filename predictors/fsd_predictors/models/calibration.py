"""A fitted model with its probabilities mended on problems of their own, where it stays as monotone in T as it was.

Knows one map of logits: a non-decreasing function of the model's logit plus one of the share, found by maximum
likelihood (as Platt 1999, with pieces). Both rise, so P still does with T. Knows no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from fsd_predictors.models.base import AcceptanceModel, Array, Parts
from fsd_predictors.models.monotone import Ramp, fit_weights, knots_of, pieces
from fsd_predictors.models.registry import MODELS


def calibrated(model: AcceptanceModel, X: npt.ArrayLike, y: npt.ArrayLike) -> Calibrated:  # noqa: N803
    """The fitted `model`, calibrated on rows (n, features) that it was not fitted on. UsageError: as `fit`."""
    return Calibrated(model).fit(X, y)


def restored(parts: Parts) -> AcceptanceModel:
    """Whichever model these parts are of, calibrated or not."""
    kinds: dict[str, type[AcceptanceModel]] = {**MODELS, Calibrated.kind: Calibrated}
    return kinds[parts.numbers["kind"]].from_parts(parts)


class Calibrated(AcceptanceModel):
    """`fit` fits the map alone: `model` is fitted already, and stays as it is."""

    kind: ClassVar[str] = "calibrated"

    def __init__(self, model: AcceptanceModel, knots: int = 11, share_knots: int = 7, penalty: float = 1e-4) -> None:
        self.model = model
        self.knots = knots
        self.share_knots = share_knots
        self.penalty = penalty

    @property
    def share(self) -> int:  # type: ignore[override]
        return self.model.share

    def __sklearn_clone__(self) -> Self:
        """A clone that knows nothing of the rows of its `fit`, with the same fitted model."""
        return type(self)(self.model, self.knots, self.share_knots, self.penalty)

    def _fit(self, rows: Array, accepted: Array) -> None:
        logits, share = self.model.logits(self.model._checked(rows)), rows[:, self.share]
        own, other = knots_of(logits, self.knots), knots_of(share, self.share_knots)
        columns = np.column_stack([np.ones(len(rows)), pieces(logits, own), pieces(share, other)])
        count = len(own) + 1
        centre = np.concatenate([[own[0]], np.ones(count), np.zeros(len(other) + 1)])  # changes nothing
        lowest = np.where(np.arange(len(centre)) == 0, -np.inf, 0.0)
        weights = fit_weights(columns, accepted, centre, lowest, self.penalty)
        self.offset_ = float(weights[0])
        self.of_logit_ = Ramp(own.tolist(), weights[1 : count + 1].tolist())
        self.of_share_ = Ramp(other.tolist(), weights[count + 1 :].tolist())

    def logits(self, rows: Array) -> Array:
        return self.offset_ + self.of_logit_.of(self.model.logits(rows)) + self.of_share_.of(rows[:, self.share])

    def logit(self, values: Sequence[float]) -> float:
        return self.offset_ + self.of_logit_(self.model.logit(values)) + self.of_share_(values[self.share])

    def parts(self) -> Parts:
        inner = self.model.parts()
        numbers: dict[str, Any] = {
            "kind": self.kind,
            "model": inner.numbers,
            "parameters": {name: getattr(self, name) for name in ("knots", "share_knots", "penalty")},
            "offset": self.offset_,
            "of_logit": self.of_logit_.numbers(),
            "of_share": self.of_share_.numbers(),
        }
        return Parts(numbers, inner.arrays, inner.text)

    @classmethod
    def from_parts(cls, parts: Parts) -> Self:
        numbers = parts.numbers
        inner = restored(Parts(numbers["model"], parts.arrays, parts.text))
        model = cls(inner, **numbers["parameters"])
        model.n_features_in_ = inner.n_features_in_
        model.offset_ = numbers["offset"]
        model.of_logit_, model.of_share_ = (Ramp(*numbers[name]) for name in ("of_logit", "of_share"))
        return model
