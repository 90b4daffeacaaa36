"""Boosted trees with a monotone constraint on T, by LightGBM (Ke et al. 2017)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

import lightgbm
import numpy as np

from fsd_common.errors import UsageError
from fsd_predictors.models.base import AcceptanceModel, Array, Parts
from fsd_predictors.models.boosted_text import check_text
from fsd_predictors.models.one_row import one_row

# Rows from which several threads are used: with fewer, as while decoding, waking threads takes longer than the work.
_MANY = 2000


class Boosted(AcceptanceModel):
    """Gradient-boosted trees.

    The defaults are few trees with many leaves: the time of one prediction while decoding grows with the number of
    trees and hardly with that of leaves.
    """

    kind: ClassVar[str] = "boosted"

    def __init__(
        self,
        share: int = 0,
        trees: int = 40,
        leaves: int = 63,
        learning_rate: float = 0.2,
        rows_a_leaf: int = 100,
        l2: float = 10.0,
        seed: int = 0,
    ) -> None:
        self.share = share
        self.trees = trees
        self.leaves = leaves
        self.learning_rate = learning_rate
        self.rows_a_leaf = rows_a_leaf
        self.l2 = l2
        self.seed = seed

    def _fit(self, rows: Array, accepted: Array) -> None:
        trained = lightgbm.train(self._settings(rows.shape[1]), lightgbm.Dataset(rows, accepted), self.trees)
        self._load(trained.model_to_string())

    def _settings(self, columns: int) -> dict[str, object]:
        return {
            "objective": "binary",
            "num_leaves": self.leaves,
            "learning_rate": self.learning_rate,
            "min_data_in_leaf": self.rows_a_leaf,
            "lambda_l2": self.l2,
            "monotone_constraints": [int(column == self.share) for column in range(columns)],
            "monotone_constraints_method": "basic",
            "seed": self.seed,
            "deterministic": True,
            "force_row_wise": True,
            "verbose": -1,
        }

    def _load(self, text: str) -> None:
        """Loads the model from LightGBM's text, after training too: this drops the training rows."""
        check_text(text, self.n_features_in_)
        try:
            self.booster_ = lightgbm.Booster(model_str=text)
        except (lightgbm.basic.LightGBMError, ValueError) as error:
            raise UsageError(f"LightGBM cannot read the model's text ({error}); train again") from error
        self.logit_of_ = one_row(self.booster_)

    def logits(self, rows: Array) -> Array:
        threads = 1 if len(rows) < _MANY else 0  # 0: all there are
        return np.asarray(self.booster_.predict(rows, raw_score=True, num_threads=threads))

    def logit(self, values: Sequence[float]) -> float:
        return self.logit_of_(values)

    def parts(self) -> Parts:
        numbers = {"kind": self.kind, "parameters": self.get_params(), "features": self.n_features_in_}
        return Parts(numbers, text=self.booster_.model_to_string())

    @classmethod
    def from_parts(cls, parts: Parts) -> Self:
        model = cls(**parts.numbers["parameters"])
        model.n_features_in_ = parts.numbers["features"]
        model._load(parts.text)
        return model
