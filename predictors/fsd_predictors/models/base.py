"""The base class of models of acceptance: scikit-learn classifiers whose forecast never falls as T rises."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin

from fsd_common.errors import UsageError

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Parts:
    """A fitted model as plain data, each part for the file format that suits it."""

    numbers: dict[str, Any]  # JSON; "kind" names the class
    arrays: dict[str, Array] = field(default_factory=dict)  # safetensors
    text: str = ""  # LightGBM's own


class AcceptanceModel(ClassifierMixin, BaseEstimator, ABC):  # type: ignore[misc]  # scikit-learn has no types
    """A binary classifier of float64 rows (n, features) whose probability is non-decreasing in the column `share`.

    Subclasses take `share`, the index of T's column, in their constructor and implement the abstract methods.
    """

    kind: ClassVar[str]
    share: int
    n_features_in_: int

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike) -> Self:  # noqa: N803  # scikit-learn's names
        """Fits the model.

        Args:
            X: (n, features), finite.
            y: (n,) whether the row's token was accepted.

        Raises:
            UsageError: X holds NaN or inf, a shape is wrong, or y holds one class only.
        """
        rows, accepted = _checked_rows(X), np.asarray(y)
        _check_labels(accepted, len(rows))
        if not 0 <= self.share < rows.shape[1]:
            raise UsageError(f"share is {self.share}; it must be one of the {rows.shape[1]} columns of X, from 0")
        self.n_features_in_ = rows.shape[1]
        self._fit(rows, accepted.astype(bool))
        return self

    @property
    def classes_(self) -> Array:
        return np.array([False, True])

    def predict_proba(self, X: npt.ArrayLike) -> Array:  # noqa: N803
        """Returns the probabilities of rejection and acceptance, (n, 2). Raises UsageError as `fit` does."""
        accepted = expit(self.logits(self._checked(X)))
        return np.column_stack([1 - accepted, accepted])

    def predict(self, X: npt.ArrayLike) -> Array:  # noqa: N803
        """Returns a mask (n,) of the rows whose acceptance is more likely than not."""
        return self.predict_proba(X)[:, 1] > 0.5

    def probability(self, values: Sequence[float]) -> float:
        """Returns the probability of acceptance of one row, as `predict_proba` but in microseconds.

        Raises UsageError as `fit` does.
        """
        if len(values) != self.n_features_in_ or not math.isfinite(sum(values)):
            self._checked(np.array([values]))
        return sigmoid(self.logit(values))

    def _checked(self, X: npt.ArrayLike) -> Array:  # noqa: N803
        if not hasattr(self, "n_features_in_"):
            raise UsageError(f"this {type(self).__name__} is not fitted yet; call fit(X, y) first")
        rows = _checked_rows(X)
        if rows.shape[1] != self.n_features_in_:
            raise UsageError(f"X has {rows.shape[1]} columns; this model was fitted on {self.n_features_in_}")
        return rows

    @abstractmethod
    def _fit(self, rows: Array, accepted: Array) -> None:
        """Fits the model on checked input."""

    @abstractmethod
    def logits(self, rows: Array) -> Array:
        """Returns the logits (n,) of checked rows (n, features)."""

    @abstractmethod
    def logit(self, values: Sequence[float]) -> float:
        """Returns the logit of one checked row."""

    @abstractmethod
    def parts(self) -> Parts:
        """Returns all that `from_parts` needs to restore the model bit for bit."""

    @classmethod
    @abstractmethod
    def from_parts(cls, parts: Parts) -> Self:
        """Restores the model from its parts."""


def sigmoid(logit: float) -> float:
    return 1 / (1 + math.exp(-logit)) if logit > -700 else 0.0  # exp(710) overflows


def _checked_rows(X: npt.ArrayLike) -> Array:  # noqa: N803
    rows = np.asarray(X, np.float64)
    if rows.ndim != 2 or not len(rows):
        raise UsageError(f"X has shape {rows.shape}; it must be (rows, features), with at least one row")
    finite = np.isfinite(rows).all(0)
    if not finite.all():
        column = int(finite.argmin())
        raise UsageError(f"column {column} of X has a NaN or inf; all features must be finite: leave those rows out")
    return rows


def _check_labels(accepted: Array, count: int) -> None:
    if accepted.shape != (count,):
        raise UsageError(f"y has shape {accepted.shape}; it must be ({count},), one label for each row of X")
    classes = np.unique(accepted).tolist()
    if classes != [False, True]:
        raise UsageError(
            f"y holds {classes!r:.60}; it must hold both 0 and 1: add rows, or thresholds, with both outcomes"
        )
