"""Forecasts from replayed or walked rounds: the threshold that accepts a share of tokens, and the speed.

Accuracy is not forecast: a replay of the target's own text says nothing about it. Rounds of trees, and those drafted by
EAGLE heads, cannot be replayed at another length or shape, so they are decoded, and walked again at every T.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import pandas as pd

from fsd_calib.measuring.measurement import Measurement
from fsd_calib.search.space import Point, Space, logit
from fsd_collectors.replay import CostModel, RoundPolicy, ScaledTraces, quantiles, sweep
from fsd_collectors.replay.blocks import Array, Traces
from fsd_collectors.replay.walks import Walked
from fsd_decoding.policies.composed import policy_named
from fsd_decoding.policies.threshold import ScalePolicy
from fsd_decoding.profile.parts import PolicyInfo
from fsd_decoding.profile.setting import Drafting, Setting
from fsd_decoding.rules import rule_named

LOWEST, HIGHEST = 0.1, 0.9995  # shares; above the highest, too little is rejected to change the speed
POINTS = 64  # of the grid, evenly spaced in logit(u); values between them are interpolated
_HALVINGS = 50  # of an interval of logit(u): down to the resolution of a float


class Forecast(Protocol):
    """Thresholds and speeds of arms.

    Attributes:
        lowest: The smallest logit(u) of the search.
        highest: The largest.

    Speeds are in tokens/s of one stream, and grow with u.
    """

    def __hash__(self) -> int:
        """Forecasts must be hashable: results for all settings are cached for the duration of a search."""
        ...

    @property
    def lowest(self) -> float: ...

    @property
    def highest(self) -> float: ...

    def threshold(self, arm: Setting, logit_share: float) -> float: ...

    def tokens_per_second(self, setting: Setting) -> float: ...

    def measured(self, measurement: Measurement) -> float:
        """Returns tokens/s computed from the rounds that were really decoded."""
        ...


class Counts(NamedTuple):
    """What a replay of the target's text counts at one setting, interpolated in T."""

    tokens: int
    rounds: float
    drafted: float


class ReplayForecast:
    """A forecast by one sweep over a grid of shares, for all arms of a space that has a single draft.

    Args:
        traces: Traces of the tuning part along the target's text, with that draft.
        costs: Cost of a round at the batch size that will be served.
        where: Which rows to use, as in `traces.batches`.
        stops: By score, the policy that ends drafts early; None: no early stopping.
        shapes: The space's policies by identity; None: as built from their identities.

    Raises:
        UsageError: As in `fsd_collectors.replay.sweep`: a rule that cannot be replayed, or a score without traces.
    """

    def __init__(
        self,
        traces: Traces,
        space: Space,
        costs: CostModel,
        where: Any = None,
        stops: Mapping[str, RoundPolicy] | None = None,
        shapes: Mapping[str | None, ScalePolicy | None] | None = None,
    ) -> None:
        self._costs, self._grid = costs, np.linspace(logit(LOWEST), logit(HIGHEST), POINTS)
        shares = 1 / (1 + np.exp(-self._grid))
        self.lowest, self.highest = float(self._grid[0]), float(self._grid[-1])
        self._quantiles: dict[tuple[PolicyInfo | None, str], Array] = {}
        self._scales: dict[tuple[PolicyInfo | None, str], Array] = {}
        self._counts: dict[Setting, tuple[Array, Array, Array]] = {}
        for identity in space.policies:
            policy = None if identity is None else PolicyInfo.of(identity)
            policy_scale = shapes[identity] if shapes is not None else policy_named(identity) if identity else None
            scaled = traces if policy_scale is None else ScaledTraces(traces, policy_scale)
            at = {name: quantiles(scaled, name, shares, where) for name in space.scores}
            scales = {name: finite(thresholds) for name, thresholds in at.items()}
            self._quantiles |= {(policy, name): thresholds for name, thresholds in at.items()}
            self._scales |= {(policy, name): scale for name, scale in scales.items()}
            frame = _sweep(scaled, space, scales, where, stops)
            self._tokens = int(frame["tokens"].iloc[0])
            self._counts |= _counts(frame, policy, *space.drafts)

    def threshold(self, arm: Setting, logit_share: float) -> float:
        """Returns the T at which the score alone accepts this share of the tokens drafted along the target's
        text."""
        return float(np.interp(logit_share, self._grid, self._scales[arm.policy, arm.score]))

    def reaches(self, arm: Setting, logit_share: float) -> bool:
        """Whether a finite T accepts this share."""
        return reached(self._grid, self._quantiles[arm.policy, arm.score], logit_share)

    def tokens_per_second(self, setting: Setting) -> float:
        return float(self._costs.tokens_per_second(*self.counts(setting)))

    def counts(self, setting: Setting) -> Counts:
        """Returns what the replay counted at a setting with a threshold."""
        thresholds, *counts = self._counts[setting.arm]
        assert setting.threshold is not None
        rounds, drafted = (float(np.interp(setting.threshold, thresholds, count)) for count in counts)
        return Counts(self._tokens, rounds, drafted)

    def measured(self, measurement: Measurement) -> float:
        return float(self._costs.tokens_per_second(measurement.tokens, measurement.rounds, measurement.drafted))


class CountingForecast(Forecast, Protocol):
    """A forecast that says what it counts."""

    def counts(self, setting: Setting) -> Counts: ...

    def reaches(self, arm: Setting, logit_share: float) -> bool:
        """Whether a finite T accepts this share."""
        ...


class DraftForecasts:
    """Forecasts of several drafts as one: by the `Drafting` of a setting; the first serves settings that do
    not draft."""

    def __init__(self, by_draft: Mapping[Drafting, CountingForecast]) -> None:
        self._by_draft, self._default = by_draft, next(iter(by_draft.values()))
        self.lowest, self.highest = self._default.lowest, self._default.highest

    def threshold(self, arm: Setting, logit_share: float) -> float:
        return self._for(arm).threshold(arm, logit_share)

    def tokens_per_second(self, setting: Setting) -> float:
        return self._for(setting).tokens_per_second(setting)

    def counts(self, setting: Setting) -> Counts:
        """Returns what the draft's own forecast counts at a setting."""
        return self._for(setting).counts(setting)

    def reaches(self, arm: Setting, logit_share: float) -> bool:
        """Whether a finite T accepts this share, with the arm's draft."""
        return self._for(arm).reaches(arm, logit_share)

    def measured(self, measurement: Measurement) -> float:
        return self._for(measurement.setting).measured(measurement)

    def _for(self, setting: Setting) -> CountingForecast:
        return self._by_draft.get(setting.drafting, self._default)


def _sweep(
    traces: Traces, space: Space, scales: Mapping[str, Array], where: Any, stops: Mapping[str, RoundPolicy] | None
) -> pd.DataFrame:
    if stops is None:
        return sweep(traces, space.rules, space.scores, scales, space.draft_lengths, where=where)
    return pd.concat(
        sweep(traces, space.rules, [name], scales, space.draft_lengths, stops[name], where) for name in space.scores
    )


def _counts(
    frame: pd.DataFrame, policy: PolicyInfo | None, draft: str | None
) -> dict[Setting, tuple[Array, Array, Array]]:
    """Returns thresholds, rounds and drafted tokens of every arm."""
    arms: Any = frame.groupby(["rule", "score", "draft_length"], sort=False)
    return {
        Setting(rule, score, length, policy=policy, draft=draft): (
            rows["threshold"].to_numpy(),
            rows["rounds"].to_numpy(),
            rows["drafted"].to_numpy(),
        )
        for (rule, score, length), rows in arms
    }


def finite(thresholds: Array) -> Array:
    """Replaces infinite thresholds by the largest finite one, where a score is infinite for some tokens."""
    finite = thresholds[np.isfinite(thresholds)]
    return np.where(np.isfinite(thresholds), thresholds, finite[-1] if len(finite) else np.finfo(np.float32).max)


def reached(grid: Array, thresholds: Array, logit_share: float) -> bool:
    return bool(np.isfinite(thresholds[np.searchsorted(grid, logit_share)]))


def setting_at(forecast: Forecast, point: Point) -> Setting:
    """Returns the arm with the threshold that accepts this share."""
    return point.arm.at(forecast.threshold(*point))


def speed_at(forecast: Forecast, arm: Setting, logit_share: float) -> float:
    return forecast.tokens_per_second(setting_at(forecast, Point(arm, logit_share)))


def least_share_reaching(forecast: Forecast, arm: Setting, wanted: float) -> float | None:
    """Returns the smallest logit(u) at which the arm is forecast to reach `wanted` tokens/s; None: it never does."""
    low, high = forecast.lowest, forecast.highest
    return _smallest(lambda at: speed_at(forecast, arm, at) >= wanted, low, high)


def _smallest(holds: Callable[[float], bool], low: float, high: float) -> float | None:
    if holds(low):
        return low
    if not holds(high):
        return None
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


_X_FIRST = "fsd"  # the rule that goes on from x where D <= T, whatever y is


class ByShare(ABC):
    """A forecast that knows a T by the share of drafted tokens, or layers, that it keeps.

    Args:
        quantiles: returns the T that keep shares (n,), (n,) by score.
        costs: of a round at the batch size that will be served, by level of a tree, or token or layer of a chain.
    """

    def __init__(self, quantiles: Callable[[Array], Mapping[str, Array]], costs: CostModel) -> None:
        self._costs = costs
        self._grid = np.linspace(logit(LOWEST), logit(HIGHEST), POINTS)
        self.lowest, self.highest = float(self._grid[0]), float(self._grid[-1])
        self._quantiles = quantiles(1 / (1 + np.exp(-self._grid)))
        self._scales = {score: finite(thresholds) for score, thresholds in self._quantiles.items()}

    @abstractmethod
    def counts(self, setting: Setting) -> Counts:
        """Returns tokens, rounds and levels drafted at a setting; of beams layers."""

    def threshold(self, arm: Setting, logit_share: float) -> float:
        """Returns the T that keeps this share."""
        return float(np.interp(logit_share, self._grid, self._scales[arm.score]))

    def reaches(self, arm: Setting, logit_share: float) -> bool:
        """Whether a finite T keeps this share."""
        return reached(self._grid, self._quantiles[arm.score], logit_share)

    def tokens_per_second(self, setting: Setting) -> float:
        return float(self._costs.tokens_per_second(*self.counts(setting)))


class WalkedForecast(ByShare):
    """A forecast from rounds that were decoded losslessly, and walked again at every T.

    Rounds begin where lossless ones do; those of a fuzzy rule begin elsewhere, which the search corrects by its trials.
    Tokens per round at a draft length between two of those that were walked are interpolated in log L. Shares are of
    the tokens drafted along the target's text, by D alone.

    Args:
        walked: by lossless rule and draft length; the first also serves rules whose lossless one is not among them.
        scores: names.
        costs: of a round at the batch size that will be served, by level of a tree or token of a chain.
    """

    def __init__(self, walked: Mapping[str, Mapping[int, Walked]], scores: tuple[str, ...], costs: CostModel) -> None:
        self._walked, self._usual = walked, next(iter(walked.values()))
        deepest = self._usual[max(self._usual)].walks
        super().__init__(lambda shares: {name: deepest.scale(name, shares) for name in scores}, costs)
        self._rates: dict[tuple[str, str, int], Array] = {}

    def counts(self, setting: Setting) -> Counts:
        lengths = sorted(self._usual)
        rates = [self._per_round(setting, length) for length in lengths]
        per_round = float(np.interp(np.log(setting.draft_length), np.log(lengths), rates))
        tokens = self._usual[lengths[-1]].tokens
        rounds = tokens / per_round
        return Counts(tokens, rounds, rounds * setting.draft_length)

    def measured(self, measurement: Measurement) -> float:
        levels = measurement.rounds * measurement.setting.draft_length if measurement.drafted else 0
        return float(self._costs.tokens_per_second(measurement.tokens, measurement.rounds, levels))

    def _per_round(self, setting: Setting, length: int) -> float:
        """Tokens per round at a draft length that was walked."""
        walked = self._walked_for(setting.rule)[length]
        per_round = walked.tokens / walked.rounds
        if setting.threshold is not None:
            thresholds, rates = self._scales[setting.score], self._rates_of(setting, length)
            per_round *= float(np.interp(setting.threshold, thresholds, rates)) / walked.walks.exactly
        return per_round

    def _walked_for(self, rule: str) -> Mapping[int, Walked]:
        return self._walked.get(rule_named(rule).lossless, self._usual)

    def _rates_of(self, setting: Setting, length: int) -> Array:
        """Tokens per round at every T of the scale."""
        rule, name = setting.rule, setting.score
        if (rule, name, length) not in self._rates:
            walks = self._walked_for(rule)[length].walks
            x_first = _X_FIRST in (rule, rule_named(rule).replayed_as)
            self._rates[rule, name, length] = walks.tokens_per_round(name, self._scales[name], x_first)
        return self._rates[rule, name, length]
