"""What trials say of retention where nothing was tried: a Gaussian process that may dip, and says how sure it is.

Knows shares, draft lengths, policies and what trials showed. Knows no speed, and no procedure that uses it.

What a trial shows is taken for a sum of three. The truth, which is smooth in logit(u), nearly the same at all draft
lengths and, as far as the data say so, under all policies. The luck of the tuning part, which settings share that lie
close together, since they flip the same problems: on 3,000 problems of the bundled pair outcomes at shares .5 apart
in logit(u) correlate by .5 to .9, 2 apart by .3 to .5, and those of L = 5 and 12 at one share by .7 to .9. And the luck
of looking at the first problems only. Hyperparameters of the truth are those of the greatest marginal likelihood.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Kernel, Matern

from fsd_calib.measuring.configuration import Configuration
from fsd_calib.search.bar import Bar, Floats

_DEEP = 3.0  # rooms below lossless; how much deeper a setting falls tells nothing of those that keep what is wanted
_SHARED = (2.0, 3.5)  # how far luck reaches, in logit(u) and in log(L)
_FEW = 4  # trials; from fewer no hyperparameters are learned
_JITTER = 1e-6
_NEAR, _FAR = 1e-3, 1e6  # lengths: of what tells all apart, and of what does not matter


class Believed(NamedTuple):
    """Of settings: what is shown in truth, its standard deviation, and that of its mean as it will be once the setting
    was tried on the whole tuning part: how much a trial can teach."""

    mean: Floats
    deviation: Floats
    learned: Floats


class _Luck(Kernel):  # type: ignore[misc]
    """Covariance of the tuning part's luck; the last column of a point is its standard deviation there."""

    def __init__(self) -> None:
        """Nothing to learn: how far luck reaches was measured."""

    def __call__(self, x: Any, y: Any = None, eval_gradient: bool = False) -> Any:
        y = x if y is None else y
        covariance = np.outer(x[:, -1], y[:, -1]) * _shared(x, y)
        return (covariance, np.empty((*covariance.shape, 0))) if eval_gradient else covariance

    def diag(self, x: Any) -> Any:
        return x[:, -1] ** 2

    def is_stationary(self) -> bool:
        return False


@dataclass(frozen=True)
class Points:
    """Settings of one divergence: arms, logit(u), and how many problems flip (see `Bar`)."""

    arms: Sequence[Configuration]
    logit_shares: Floats
    flipped: Floats


class Belief:
    """About the settings of one rule, divergence and draft.

    Args:
        tried, shown, problems: settings, what they showed, and on how many problems; empty: nothing is known.
        policies: all there are.
    """

    def __init__(
        self, tried: Points, shown: Floats, problems: NDArray[np.int64], bar: Bar, policies: Sequence[str | None]
    ) -> None:
        self._bar, self._policies = bar, list(policies)
        # What is small beside a room is not worth a fit of its own, nor is what is small beside luck.
        self._room = max(bar.lossless - bar.wanted, bar.per_change / np.sqrt(bar.tuning))
        self._truth: Any = _truth(len(self._policies))
        self._x, self._weights, self._root = np.empty((0, 0)), np.empty(0), np.empty((0, 0))
        if len(shown):
            self._fit(tried, shown, problems)

    def about(self, points: Points) -> Believed:
        """Where nothing was tried, lossless is the guess, and the deviation large."""
        x = self._features(points)
        to_truth, explained = self._from_seen(x)
        truth = self._truth.diag(x) - np.einsum("ij,ji->i", to_truth, explained)
        luck = (self._truth + _Luck())(x, self._x) if len(self._x) else np.empty((len(x), 0))
        cross = self._truth.diag(x) - np.einsum("ij,ji->i", luck, explained)
        left = (self._truth + _Luck()).diag(x) - np.einsum("ij,ji->i", luck, self._solved(luck))
        learned = cross.clip(0) / np.sqrt(left.clip(0) + _JITTER)
        return Believed(
            self._bar.lossless + self._room * (to_truth @ self._weights),
            self._room * np.sqrt(truth.clip(0)),
            self._room * np.minimum(learned, np.sqrt(truth.clip(0))),
        )

    def covariance(self, points: Points) -> Floats:
        """Of what is believed, between settings."""
        x = self._features(points)
        to_truth, explained = self._from_seen(x)
        return np.asarray(self._room**2 * (self._truth(x) - to_truth @ explained))

    def shared_luck(self, points: Points) -> Floats:
        """Correlations of what the same problems show of these settings."""
        x = self._features(points)
        return _shared(x, x)

    def _from_seen(self, x: Floats) -> tuple[Floats, Floats]:
        to_truth = self._truth(x, self._x) if len(self._x) else np.empty((len(x), 0))
        return to_truth, self._solved(to_truth)

    def _solved(self, rows: Floats) -> Floats:
        return np.asarray(cho_solve((self._root, True), rows.T)) if rows.size else rows.T

    def _fit(self, tried: Points, shown: Floats, problems: NDArray[np.int64]) -> None:
        rooms = (shown - self._bar.lossless) / self._room
        scale = _DEEP / np.maximum(-rooms, _DEEP)  # of what lies deeper, its luck with it: it is no less sure to be bad
        x, partial = self._features(tried), self._luck(tried.flipped) ** 2 * (self._bar.tuning / problems - 1)
        x[:, -1] *= scale
        process = GaussianProcessRegressor(
            self._truth + _Luck(),
            alpha=partial.clip(0) * scale**2 + _JITTER,
            optimizer="fmin_l_bfgs_b" if len(shown) >= _FEW else None,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a length at its bound is what bounds are for
            process.fit(x, rooms * scale)
        self._truth, self._x = process.kernel_.k1, process.X_train_
        self._root, self._weights = process.L_, process.alpha_

    def _features(self, points: Points) -> Floats:
        length = np.log([arm.draft_length for arm in points.arms])
        policy = np.array([[arm.policy == known for known in self._policies] for arm in points.arms], float)
        return np.column_stack([points.logit_shares, length, policy, self._luck(points.flipped)])

    def _luck(self, flipped: Floats) -> Floats:
        """Standard deviation, in rooms, of what the whole tuning part shows."""
        return np.asarray(self._bar.per_change * np.sqrt(flipped / self._bar.tuning) / self._room)


def _truth(policies: int) -> Kernel:
    """What all policies share, and what is each one's own: the less they differ, the more one tells of another."""
    ignored = [_FAR] * (policies + 1)  # a kernel cannot leave columns out, nor fix some of its lengths but by bounds
    shared = ConstantKernel(2.0, (0.3, 10.0)) * Matern(
        [0.7, 4.0, *ignored], [(0.3, 1.0), (1.0, 20.0), *([(_FAR, 1.01 * _FAR)] * len(ignored))], nu=1.5
    )
    if policies == 1:
        return shared
    return shared + ConstantKernel(0.5, (0.01, 10.0)) * Matern([1.0, 4.0, *([_NEAR] * policies), _FAR], "fixed", nu=1.5)


def _shared(x: Floats, y: Floats) -> Floats:
    """How much luck settings share: correlations."""
    return np.asarray(Matern(_SHARED, nu=0.5)(x[:, :2], y[:, :2]))
