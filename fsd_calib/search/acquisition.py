"""Predicted speed and probability of certification of settings, and the acquisition function built on them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain

import numpy as np
from numpy.typing import NDArray
from sklearn.isotonic import IsotonicRegression

from fsd_calib.search.forecast import Forecast, setting_at
from fsd_calib.search.objective import FinishedTrial, Observation
from fsd_calib.search.space import Point, Space
from fsd_calib.search.surrogate import Floats, PassModel, Points, Posterior, Surrogate
from fsd_decoding.profile.setting import Setting

_STEP = 0.125  # in logit(u), of the grid of settings
_TYPICAL_FLIPS = 0.03  # before the first trial
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(9)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()


@dataclass(frozen=True, eq=False)
class SettingGrid:
    """Settings as arrays: arms and logit(u), with forecast speeds in tokens/s."""

    arms: Sequence[Setting]
    logit_shares: Floats
    speeds: Floats

    def __len__(self) -> int:
        return len(self.arms)

    def point(self, index: int) -> Point:
        return Point(self.arms[index], float(self.logit_shares[index]))

    def subset(self, which: NDArray[np.intp]) -> SettingGrid:
        return SettingGrid([self.arms[i] for i in which.tolist()], self.logit_shares[which], self.speeds[which])

    def corrected(self, trials: Sequence[FinishedTrial], forecast: Forecast) -> SettingGrid:
        """Returns the settings with speeds multiplied by the mean ratio, measured to forecast, of the trials of the
        same family."""
        ratios: dict[Setting, list[float]] = {}
        for t in trials:
            ratio = t.tokens_per_second / forecast.tokens_per_second(t.setting)
            ratios.setdefault(t.arm.family, []).append(ratio)
        by_arm = {arm: float(np.mean(ratios.get(arm.family, [1.0]))) for arm in set(self.arms)}
        corrections = np.array([by_arm[arm] for arm in self.arms])
        return SettingGrid(self.arms, self.logit_shares, self.speeds * corrections)


def settings_at(points: Iterable[Point], speeds: Sequence[float] | None = None) -> SettingGrid:
    """Returns the settings of these points; speeds are 0 where none are given."""
    listed = list(points)
    shares = np.array([point.logit_share for point in listed])
    return SettingGrid([p.arm for p in listed], shares, np.zeros(len(listed)) if speeds is None else np.array(speeds))


@lru_cache(maxsize=4)  # requested before every trial
def all_settings(space: Space, forecast: Forecast) -> SettingGrid:
    """Returns all arms on one grid of logit(u). Of shares that give the same threshold, as with few traces, the first
    is kept."""
    shares = np.arange(forecast.lowest, forecast.highest, _STEP).tolist()
    points = [Point(arm, at) for arm in chain.from_iterable(space.families) for at in shares]
    distinct = {setting_at(forecast, point): point for point in reversed(points)}
    speeds = [forecast.tokens_per_second(setting) for setting in reversed(distinct)]
    return settings_at(reversed(distinct.values()), speeds)


class Prospects:
    """Predictions for settings, from the observations of trials.

    Args:
        settings: What to predict for.
        observations: What trials showed; also of arms that are not among `settings`.
        pass_model: The certification test.
        lossless: Speed of lossless decoding in tokens/s, which needs no certificate.
    """

    def __init__(
        self, settings: SettingGrid, observations: Sequence[Observation], pass_model: PassModel, lossless: float
    ) -> None:
        self.settings, self.lossless, self.observations, self.pass_model = settings, lossless, observations, pass_model
        arms = [*settings.arms, *(s.arm for s in observations)]
        self._pooled = len({arm.drafting for arm in arms}) > 1
        self._variants = list(dict.fromkeys(map(self._variant, arms)))

    @cached_property
    def posterior(self) -> Posterior:
        """The surrogate model's predictions of retention (or accuracy)."""
        columns = [np.empty(len(self.settings)) for _ in Posterior._fields]
        for which, surrogate in self._fitted:
            for whole, part in zip(columns, surrogate.about(self._points(which)), strict=True):
                whole[which] = part
        return Posterior(*columns)

    @cached_property
    def flipped(self) -> Floats:
        """Each setting's variance of one problem's outcome difference, interpolated from trials near in logit(u)."""
        flipped = np.empty(len(self.settings))
        for group, which in self._indices_by_group.items():
            flipped[which] = _interpolate_flips(self._observations_of(group), self.settings.logit_shares[which])
        return flipped

    @cached_property
    def chances(self) -> Floats:
        """Each setting's probability of passing the certification test."""
        return self.pass_model.chance(self.posterior.mean, self.posterior.deviation, self.flipped)

    @property
    def expected(self) -> Floats:
        """Each setting's expected certified speed in tokens/s, if it alone is tested and lossless decoding is the
        fallback."""
        return self.lossless + self._gains * self.chances

    @cached_property
    def improvements(self) -> Floats:
        """The acquisition function: the expected increase, by one trial of a setting, of the best expected speed."""
        mean, deviation, learned = self.posterior
        left = np.sqrt((deviation**2 - learned**2).clip(0))
        best = self.expected.max()
        after = [
            self.lossless + self._gains * self.pass_model.chance(mean + node * learned, left, self.flipped)
            for node in _NODES
        ]
        return np.asarray(_WEIGHTS @ np.maximum(after, best) - best)

    def covariances(self) -> tuple[Floats, Floats]:
        """Returns two covariances between settings: of the posterior, and of the noise of the certification part.

        Settings of different groups are taken as independent.
        """
        size = len(self.settings)
        posterior, noise = np.zeros((size, size)), np.zeros((size, size))
        deviation = self.pass_model.certified_deviation(self.flipped)
        for which, surrogate in self._fitted:
            points, block = self._points(which), np.ix_(which, which)
            posterior[block] = surrogate.covariance(points)
            noise[block] = surrogate.noise_correlation(points) * np.outer(deviation[which], deviation[which])
        if self.pass_model.absolute:  # nearly all noise is that of the target's accuracy, common to all
            noise = np.outer(deviation, deviation)
        return posterior + self.pass_model.common_deviation**2, noise

    @property
    def needed(self) -> Floats:
        """The retention (or accuracy) that each setting must show on the certification part."""
        return self.pass_model.needed(self.flipped)

    @property
    def _gains(self) -> Floats:
        return (self.settings.speeds - self.lossless).clip(0)

    @cached_property
    def _indices_by_group(self) -> dict[Setting, NDArray[np.intp]]:
        groups: dict[Setting, list[int]] = {}
        for i, arm in enumerate(self.settings.arms):
            groups.setdefault(self._group(arm), []).append(i)
        return {group: np.array(which) for group, which in groups.items()}

    @cached_property
    def _fitted(self) -> list[tuple[NDArray[np.intp], Surrogate]]:
        return [(which, self._fit(self._observations_of(group))) for group, which in self._indices_by_group.items()]

    def _observations_of(self, group: Setting) -> list[Observation]:
        return [s for s in self.observations if self._group(s.arm) == group]

    def _fit(self, observations: Sequence[Observation]) -> Surrogate:
        shares = np.array([s.logit_share for s in observations])
        points = self._points_at([s.arm for s in observations], shares, _interpolate_flips(observations, shares))
        changes, problems = np.array([s.change for s in observations]), np.array([s.problems for s in observations])
        return Surrogate(points, self.pass_model.shown(changes), problems, self.pass_model, self._variants)

    def _points(self, which: NDArray[np.intp]) -> Points:
        subset = self.settings.subset(which)
        return self._points_at(subset.arms, subset.logit_shares, self.flipped[which])

    def _points_at(self, arms: Sequence[Setting], logit_shares: Floats, flipped: Floats) -> Points:
        return Points(arms, [*map(self._variant, arms)], logit_shares, flipped)

    def _group(self, arm: Setting) -> Setting:
        """Returns what one surrogate model covers: everything but draft length and variant.

        Where several drafts or shapes are compared, those of a draft have one model for all scores and shapes: a
        draft whose words are wrong fails with all of them, which trials of each would take the whole budget to find.
        """
        if self._pooled:
            return Setting(arm.rule, "", 1, draft=arm.draft)
        return Setting(arm.rule, arm.score, 1, draft=arm.draft, tree=arm.tree)

    def _variant(self, arm: Setting) -> Hashable:
        """Returns what tells the settings of a group apart, beside their draft length."""
        return (arm.policy, arm.score, arm.tree, arm.width) if self._pooled else arm.policy


def _interpolate_flips(observations: Sequence[Observation], at: Floats) -> Floats:
    """Interpolates the variance of flips, which rises with logit(u); beyond the trials it is that of the nearest
    one."""
    if not observations:
        return np.full_like(at, _TYPICAL_FLIPS)
    problems = np.array([s.problems for s in observations])
    rates = np.array([s.flipped for s in observations]) + 1 / problems
    shares = np.array([s.logit_share for s in observations])
    return np.asarray(IsotonicRegression(out_of_bounds="clip").fit(shares, rates, problems).predict(at))
