"""The models of acceptance by their kind, as `--kind` names them."""

from __future__ import annotations

from fsd_predictors.models.base import AcceptanceModel
from fsd_predictors.models.boosted import Boosted
from fsd_predictors.models.head import Head
from fsd_predictors.models.logistic import Logistic

MODELS: dict[str, type[AcceptanceModel]] = {model.kind: model for model in (Logistic, Boosted, Head)}
