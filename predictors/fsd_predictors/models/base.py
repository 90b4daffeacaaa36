"""What an acceptance model is: rows of numbers to the probability that a token is accepted, never less at a larger T.

Knows scikit-learn's interface, what input it refuses, and that every model speaks in logits. Knows no model.
"""

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

from fsd_decoding.errors import UsageError

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Parts:
    """A fitted model as plain things, each for the file format that suits it."""

    numbers: dict[str, Any]  # JSON; "kind" says whose they are
    arrays: dict[str, Array] = field(default_factory=dict)  # safetensors
    text: str = ""  # LightGBM's own


class AcceptanceModel(ClassifierMixin, BaseEstimator, ABC):  # type: ignore[misc]  # scikit-learn has no types
    """A binary classifier of float64 rows (n, features) that never falls in the column `share`.

    Subclasses take `share` in their constructor and give what is abstract here.
    """

    kind: ClassVar[str]
    share: int
    n_features_in_: int

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike) -> Self:  # noqa: N803  # scikit-learn's names
        """X (n, features) and y (n,): whether it was accepted.

        UsageError: a NaN or inf in X, other shapes, or one class only.
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
        """(n, 2): refused, accepted. UsageError: as `fit`."""
        accepted = expit(self.logits(self._checked(X)))
        return np.column_stack([1 - accepted, accepted])

    def predict(self, X: npt.ArrayLike) -> Array:  # noqa: N803
        """(n,) bool: accepted, more likely than not."""
        return self.predict_proba(X)[:, 1] > 0.5

    def probability(self, values: Sequence[float]) -> float:
        """Accepted, of one row: `predict_proba`'s number, in microseconds. UsageError: as `fit`."""
        if len(values) != self.n_features_in_ or not math.isfinite(sum(values)):
            self._checked(np.array([values]))
        return sigmoid(self.logit(values))

    def _checked(self, X: npt.ArrayLike) -> Array:  # noqa: N803
        if not hasattr(self, "n_features_in_"):
            raise UsageError(f"this {type(self).__name__} knows nothing yet; call fit(X, y) first")
        rows = _checked_rows(X)
        if rows.shape[1] != self.n_features_in_:
            raise UsageError(f"X has {rows.shape[1]} columns; this model was fitted on {self.n_features_in_}")
        return rows

    @abstractmethod
    def _fit(self, rows: Array, accepted: Array) -> None:
        """What `fit` does once its input is checked."""

    @abstractmethod
    def logits(self, rows: Array) -> Array:
        """(n, features), checked, to (n,)."""

    @abstractmethod
    def logit(self, values: Sequence[float]) -> float:
        """The same of one checked row."""

    @abstractmethod
    def parts(self) -> Parts:
        """All that `from_parts` needs to be the same model, bit for bit."""

    @classmethod
    @abstractmethod
    def from_parts(cls, parts: Parts) -> Self:
        """The model that gave these parts."""


def sigmoid(logit: float) -> float:
    return 1 / (1 + math.exp(-logit)) if logit > -700 else 0.0  # exp(710) overflows


def _checked_rows(X: npt.ArrayLike) -> Array:  # noqa: N803
    rows = np.asarray(X, np.float64)
    if rows.ndim != 2 or not len(rows):
        raise UsageError(f"X has shape {rows.shape}; it must be (rows, features), with a row at least")
    finite = np.isfinite(rows).all(0)
    if not finite.all():
        column = int(finite.argmin())
        raise UsageError(f"column {column} of X has a NaN or inf; all features must be finite: mend or leave out rows")
    return rows


def _check_labels(accepted: Array, count: int) -> None:
    if accepted.shape != (count,):
        raise UsageError(f"y has shape {accepted.shape}; it must be ({count},), one label a row of X")
    classes = np.unique(accepted).tolist()
    if classes != [False, True]:
        raise UsageError(
            f"y holds {classes!r:.60}; it must hold both 0 and 1: give rows, or thresholds, with both outcomes"
        )
