"""The models of acceptance by their kind, and the calibration of a fitted one.

Calibration keeps probabilities non-decreasing in T. The calibrated logit is a non-decreasing piecewise linear function
of the model's logit plus one of the share, found by maximum likelihood on rows the model was not fitted on (Platt 1999,
with pieces).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np

from fsd_predictors.models.base import AcceptanceModel, Array, Parts
from fsd_predictors.models.boosted import Boosted
from fsd_predictors.models.logistic import Logistic
from fsd_predictors.models.mlp import MLP
from fsd_predictors.models.monotone import Ramp, fit_weights, knots_of, pieces

MODELS: dict[str, type[AcceptanceModel]] = {model.kind: model for model in (Logistic, Boosted, MLP)}


def restore_model(parts: Parts) -> AcceptanceModel:
    """Restores a model of any kind, calibrated or not, from its parts."""
    kinds: dict[str, type[AcceptanceModel]] = {**MODELS, Calibrated.kind: Calibrated}
    return kinds[parts.numbers["kind"]].from_parts(parts)


class Calibrated(AcceptanceModel):
    """A fitted model with a calibration of its logits; `fit` fits the calibration alone, on rows new to the model.

    Args:
        model: the fitted model.
        knots: knots of the function of the model's logit.
        share_knots: knots of the function of the share.
        penalty: L2 penalty on the distance from the identity.
    """

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
        """scikit-learn's hook for `clone`: an unfitted calibration of the same fitted model."""
        return type(self)(self.model, self.knots, self.share_knots, self.penalty)

    def _fit(self, rows: Array, accepted: Array) -> None:
        logits, share = self.model.logits(self.model._checked(rows)), rows[:, self.share]
        own, other = knots_of(logits, self.knots), knots_of(share, self.share_knots)
        columns = np.column_stack([np.ones(len(rows)), pieces(logits, own), pieces(share, other)])
        count = len(own) + 1
        centre = np.concatenate([[own[0]], np.ones(count), np.zeros(len(other) + 1)])  # identity
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
        inner = restore_model(Parts(numbers["model"], parts.arrays, parts.text))
        model = cls(inner, **numbers["parameters"])
        model.n_features_in_ = inner.n_features_in_
        model.offset_ = numbers["offset"]
        model.of_logit_, model.of_share_ = (Ramp(*numbers[name]) for name in ("of_logit", "of_share"))
        return model
