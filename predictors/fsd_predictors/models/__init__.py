"""Models of acceptance: features of one drafted token to the probability that it is accepted."""

from __future__ import annotations

from fsd_predictors.models.base import AcceptanceModel, Parts
from fsd_predictors.models.boosted import Boosted
from fsd_predictors.models.calibrating import Calibrated, calibrated, restored
from fsd_predictors.models.head import Head
from fsd_predictors.models.kinds import MODELS
from fsd_predictors.models.logistic import Logistic

__all__ = ["MODELS", "AcceptanceModel", "Boosted", "Calibrated", "Head", "Logistic", "Parts", "calibrated", "restored"]
