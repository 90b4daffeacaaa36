"""A normal approximation of the certification test: the probability that a setting passes it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve
from scipy.special import ndtr, ndtri
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Kernel, Matern

from fsd_decoding.profile.setting import Setting

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class PassModel:
    """The certification test on a part of a given size, approximated by the normal law.

    A setting is described by two numbers: `change`, its accuracy minus the target's on the same problems, and
    `flipped`, the variance of that difference for one problem (losses plus gains as shares of problems, where a
    problem has one seed).

    Args:
        wanted: Retention to certify, or accuracy where `absolute`.
        accuracy: The target's, on the tuning part.
        tuning: Number of problems of the tuning part.
        certification: Number of problems of the certification part.
        delta: Significance level of the test.
        absolute: The claim is about the accuracy itself, not about retention.
    """

    wanted: float
    accuracy: float
    tuning: int
    certification: int
    delta: float
    absolute: bool = False

    @property
    def lossless(self) -> float:
        """The retention or accuracy of a setting that changes no answer."""
        return self.accuracy if self.absolute else 1.0

    def shown(self, change: Any) -> Any:
        """Returns the retention or accuracy that belongs to a change in accuracy."""
        return self.lossless + self.per_change * change

    @property
    def per_change(self) -> float:
        """How much retention or accuracy falls per unit of accuracy lost."""
        return 1.0 if self.absolute or not self.accuracy else 1 / self.accuracy

    def certified_deviation(self, flipped: Floats) -> Floats:
        """Returns the standard deviation of the test statistic on the certification part, where the truth is `wanted`.

        The statistic is the mean of B - wanted A (A, B: target and setting solve the problem), or of B where
        `absolute`.
        """
        if self.absolute:
            binomial = self.wanted * (1 - self.wanted) + 1 / self.certification
            return np.full_like(flipped, math.sqrt(binomial / self.certification))
        variance = flipped + (1 - self.wanted) ** 2 * self.accuracy
        return self.per_change * np.sqrt((variance + 1 / self.certification) / self.certification)

    @property
    def common_deviation(self) -> float:
        """Standard deviation of the tuning part's sampling noise that all settings share: that of the target's own
        accuracy, where the claim is absolute."""
        return math.sqrt(self.accuracy * (1 - self.accuracy) / self.tuning) if self.absolute else 0.0

    def needed(self, flipped: Floats) -> Floats:
        """Returns the retention or accuracy that the certification part must show for the test to pass."""
        return self.wanted + float(ndtri(1 - self.delta)) * self.certified_deviation(flipped)

    def chance(self, mean: Floats, deviation: Floats, flipped: Floats) -> Floats:
        """Returns the probability of passing, where the true value has a normal law with `mean` and `deviation`."""
        spread = np.hypot(np.hypot(deviation, self.common_deviation), self.certified_deviation(flipped))
        return np.asarray(ndtr((mean - self.needed(flipped)) / spread))


_CLIPPED_AT = 3.0  # units below lossless; how far below that a setting falls says nothing about the acceptable ones
_NOISE_LENGTHS = (2.0, 3.5)  # correlation lengths of the noise, in logit(u) and in log(L)
_FEWEST = 4  # trials; with fewer the hyperparameters keep their initial values
_JITTER = 1e-6
_SHORT, _LONG = 1e-3, 1e6  # length scales: of a column whose values do not correlate, of one to ignore


class Posterior(NamedTuple):
    """Predictions for settings, one element each.

    Attributes:
        mean: Expected true retention (or accuracy).
        deviation: Its standard deviation.
        learned: Standard deviation of the posterior mean after a trial of the setting on the whole tuning part: how
            much that trial can teach.
    """

    mean: Floats
    deviation: Floats
    learned: Floats


class _SamplingNoise(Kernel):  # type: ignore[misc]
    """Covariance of the tuning part's sampling noise; the last column of a point is its standard deviation."""

    def __init__(self) -> None:
        """Has no hyperparameters: the correlation lengths were measured."""

    def __call__(self, x: Any, y: Any = None, eval_gradient: bool = False) -> Any:
        y = x if y is None else y
        covariance = np.outer(x[:, -1], y[:, -1]) * _noise_correlation(x, y)
        return (covariance, np.empty((*covariance.shape, 0))) if eval_gradient else covariance

    def diag(self, x: Any) -> Any:
        return x[:, -1] ** 2

    def is_stationary(self) -> bool:
        return False


@dataclass(frozen=True)
class Points:
    """Settings of one group: arms with their variants, logit(u), and the variance of one problem's outcome difference
    (see `PassModel`)."""

    arms: Sequence[Setting]
    variants: Sequence[Hashable]
    logit_shares: Floats
    flipped: Floats


class Surrogate:
    """The surrogate model of one group of settings, of one rule and draft.

    Args:
        points: Settings that were tried; empty before the first trial.
        observed: The retention (or accuracy) that each showed.
        problems: The number of problems that each was tried on.
        pass_model: Gives the scale: what is wanted, and what lossless decoding shows.
        variants: All of them.
    """

    def __init__(
        self,
        points: Points,
        observed: Floats,
        problems: NDArray[np.int64],
        pass_model: PassModel,
        variants: Sequence[Hashable],
    ) -> None:
        self._pass_model, self._variants = pass_model, list(variants)
        # The unit of retention is the gap between lossless and wanted, but no less than 1 / sqrt(problems): a
        # smaller one would drown in sampling noise.
        self._unit = max(pass_model.lossless - pass_model.wanted, pass_model.per_change / np.sqrt(pass_model.tuning))
        self._truth: Any = _truth(len(self._variants))
        self._x, self._weights, self._root = np.empty((0, 0)), np.empty(0), np.empty((0, 0))
        if len(observed):
            self._fit(points, observed, problems)

    def about(self, points: Points) -> Posterior:
        """Returns predictions. Far from all trials the mean is that of lossless decoding and the deviation large."""
        x = self._features(points)
        to_truth, explained = self._cross_covariance(x)
        truth = self._truth.diag(x) - np.einsum("ij,ji->i", to_truth, explained)
        noise = (self._truth + _SamplingNoise())(x, self._x) if len(self._x) else np.empty((len(x), 0))
        cross = self._truth.diag(x) - np.einsum("ij,ji->i", noise, explained)
        left = (self._truth + _SamplingNoise()).diag(x) - np.einsum("ij,ji->i", noise, self._solve(noise))
        learned = cross.clip(0) / np.sqrt(left.clip(0) + _JITTER)
        return Posterior(
            self._pass_model.lossless + self._unit * (to_truth @ self._weights),
            self._unit * np.sqrt(truth.clip(0)),
            self._unit * np.minimum(learned, np.sqrt(truth.clip(0))),
        )

    def covariance(self, points: Points) -> Floats:
        """Returns the posterior covariance between settings."""
        x = self._features(points)
        to_truth, explained = self._cross_covariance(x)
        return np.asarray(self._unit**2 * (self._truth(x) - to_truth @ explained))

    def noise_correlation(self, points: Points) -> Floats:
        """Returns how the sampling noise of settings correlates where they decode the same problems."""
        x = self._features(points)
        return _noise_correlation(x, x)

    def _cross_covariance(self, x: Floats) -> tuple[Floats, Floats]:
        to_truth = self._truth(x, self._x) if len(self._x) else np.empty((len(x), 0))
        return to_truth, self._solve(to_truth)

    def _solve(self, rows: Floats) -> Floats:
        return np.asarray(cho_solve((self._root, True), rows.T)) if rows.size else rows.T

    def _fit(self, points: Points, observed: Floats, problems: NDArray[np.int64]) -> None:
        scaled = (observed - self._pass_model.lossless) / self._unit
        scale = _CLIPPED_AT / np.maximum(-scaled, _CLIPPED_AT)  # clips deep values, and scales their noise too
        x, partial = self._features(points), self._noise(points.flipped) ** 2 * (self._pass_model.tuning / problems - 1)
        x[:, -1] *= scale
        process = GaussianProcessRegressor(
            self._truth + _SamplingNoise(),
            alpha=partial.clip(0) * scale**2 + _JITTER,
            optimizer="fmin_l_bfgs_b" if len(observed) >= _FEWEST else None,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a length scale at its bound is intended
            process.fit(x, scaled * scale)
        self._truth, self._x = process.kernel_.k1, process.X_train_
        self._root, self._weights = process.L_, process.alpha_

    def _features(self, points: Points) -> Floats:
        length = np.log([arm.draft_length for arm in points.arms])
        variant = np.array([[each == known for known in self._variants] for each in points.variants], float)
        return np.column_stack([points.logit_shares, length, variant, self._noise(points.flipped)])

    def _noise(self, flipped: Floats) -> Floats:
        """Returns the standard deviation of what the whole tuning part shows, in units of `_unit`."""
        return np.asarray(self._pass_model.per_change * np.sqrt(flipped / self._pass_model.tuning) / self._unit)


def _truth(variants: int) -> Kernel:
    """Returns the kernel of the true retention: a term that all variants share, plus one term of each variant.

    The smaller the second term is fitted, the more a trial of one variant says about another.
    """
    # A kernel can neither skip columns nor fix some of its length scales, except by bounds.
    ignored = [_LONG] * (variants + 1)
    shared = ConstantKernel(2.0, (0.3, 10.0)) * Matern(
        [0.7, 4.0, *ignored], [(0.3, 1.0), (1.0, 20.0), *([(_LONG, 1.01 * _LONG)] * len(ignored))], nu=1.5
    )
    if variants == 1:
        return shared
    return shared + ConstantKernel(0.5, (0.01, 10.0)) * Matern(
        [1.0, 4.0, *([_SHORT] * variants), _LONG], "fixed", nu=1.5
    )


def _noise_correlation(x: Floats, y: Floats) -> Floats:
    """Returns correlations of the sampling noise between settings."""
    return np.asarray(Matern(_NOISE_LENGTHS, nu=0.5)(x[:, :2], y[:, :2]))
