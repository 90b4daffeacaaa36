"""What traces along the target say beforehand: thresholds by the share they accept, and speed without decoding.

Knows replay and the cost model. Knows nothing of accuracy, of which a replay says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import pandas as pd

from fsd_calib.measuring.configuration import Configuration
from fsd_calib.measuring.measurement import Measurement
from fsd_calib.search.space import Point, Space, logit
from fsd_collectors.replay import CostModel, RoundPolicy, ScaledTraces, quantiles, sweep
from fsd_collectors.replay.blocks import Array, Traces
from fsd_decoding.policies.registry import policy_named
from fsd_decoding.policies.threshold import ScalePolicy

_LOWEST, _HIGHEST = 0.1, 0.9995  # shares; above the highest nothing is rejected that a speed could tell
_POINTS = 64  # of the grid, even in logit(u); between them everything is interpolated
_HALVINGS = 50  # of an interval of logit(u): more than a float can tell apart


class Forecast(Protocol):
    """lowest, highest: the range of logit(u). Speeds are tokens/s of one stream, and grow with u."""

    def __hash__(self) -> int:
        """What it says of all settings is kept for as long as a search takes."""
        ...

    @property
    def lowest(self) -> float: ...

    @property
    def highest(self) -> float: ...

    def threshold(self, arm: Configuration, logit_share: float) -> float: ...

    def tokens_per_second(self, configuration: Configuration) -> float: ...

    def measured(self, measurement: Measurement) -> float:
        """Tokens/s by the rounds that were really decoded."""
        ...


class ReplayForecast:
    """One sweep over a grid of shares, for every arm of the space, which has a single draft.

    Args:
        traces: of the tuning part, along the target, with that draft.
        costs: of a round at the batch size that will be served.
        where: which rows, as `traces.batches` takes it.
        stops: by divergence, what ends drafts early; None: nothing does.
        shapes: by identity, the space's policies; None: they are what their identities say.

    Raises:
        UsageError: as `fsd_collectors.replay.sweep`: a rule that cannot be replayed, a divergence without traces.
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
        self._costs, self._grid = costs, np.linspace(logit(_LOWEST), logit(_HIGHEST), _POINTS)
        shares = 1 / (1 + np.exp(-self._grid))
        self.lowest, self.highest = float(self._grid[0]), float(self._grid[-1])
        self._scales: dict[tuple[str | None, str], Array] = {}
        self._counts: dict[Configuration, tuple[Array, Array, Array]] = {}
        for policy in space.policies:
            shape = _shape(policy) if shapes is None else shapes[policy]
            seen = traces if shape is None else ScaledTraces(traces, shape)
            scales = {name: _finite(quantiles(seen, name, shares, where)) for name in space.divergences}
            self._scales |= {(policy, name): scale for name, scale in scales.items()}
            frame = _swept(seen, space, scales, where, stops)
            self._tokens = int(frame["tokens"].iloc[0])
            self._counts |= _counts(frame, policy, *space.drafts)

    def threshold(self, arm: Configuration, logit_share: float) -> float:
        """The T that accepts this share of the drafted tokens in the target's own text, by D alone."""
        return float(np.interp(logit_share, self._grid, self._scales[arm.policy, arm.divergence]))

    def tokens_per_second(self, configuration: Configuration) -> float:
        thresholds, *counts = self._counts[configuration.arm]
        assert configuration.threshold is not None
        rounds, drafted = (np.interp(configuration.threshold, thresholds, count) for count in counts)
        return float(self._costs.tokens_per_second(self._tokens, rounds, drafted))

    def measured(self, measurement: Measurement) -> float:
        return float(self._costs.tokens_per_second(measurement.tokens, measurement.rounds, measurement.drafted))


class DraftForecasts:
    """The forecasts of several drafts as one: each answers for the configurations of its own draft, by name, and the
    first for those that do not draft."""

    def __init__(self, by_draft: Mapping[str | None, Forecast]) -> None:
        self._by_draft, self._first = by_draft, next(iter(by_draft.values()))
        self.lowest, self.highest = self._first.lowest, self._first.highest

    def threshold(self, arm: Configuration, logit_share: float) -> float:
        return self._of(arm).threshold(arm, logit_share)

    def tokens_per_second(self, configuration: Configuration) -> float:
        return self._of(configuration).tokens_per_second(configuration)

    def measured(self, measurement: Measurement) -> float:
        return self._of(measurement.configuration).measured(measurement)

    def _of(self, configuration: Configuration) -> Forecast:
        return self._by_draft.get(configuration.draft, self._first)


def _shape(identity: str | None) -> ScalePolicy | None:
    return None if identity is None else policy_named(identity)


def _swept(
    traces: Traces, space: Space, scales: Mapping[str, Array], where: Any, stops: Mapping[str, RoundPolicy] | None
) -> pd.DataFrame:
    if stops is None:
        return sweep(traces, space.rules, space.divergences, scales, space.draft_lengths, where=where)
    return pd.concat(
        sweep(traces, space.rules, [name], scales, space.draft_lengths, stops[name], where)
        for name in space.divergences
    )


def _counts(
    frame: pd.DataFrame, policy: str | None, draft: str | None
) -> dict[Configuration, tuple[Array, Array, Array]]:
    """Of every arm: thresholds, rounds and drafted tokens."""
    arms: Any = frame.groupby(["rule", "divergence", "draft_length"], sort=False)
    return {
        Configuration(rule, divergence, length, policy=policy, draft=draft): (
            rows["threshold"].to_numpy(),
            rows["rounds"].to_numpy(),
            rows["drafted"].to_numpy(),
        )
        for (rule, divergence, length), rows in arms
    }


def _finite(thresholds: Array) -> Array:
    """Where a divergence is infinite for some tokens, the largest shares take all that are not."""
    finite = thresholds[np.isfinite(thresholds)]
    return np.where(np.isfinite(thresholds), thresholds, finite[-1] if len(finite) else np.finfo(np.float32).max)


def placed(forecast: Forecast, point: Point) -> Configuration:
    """The arm with the threshold that accepts this share."""
    return point.arm.at(forecast.threshold(*point))


def speed_at(forecast: Forecast, arm: Configuration, logit_share: float) -> float:
    return forecast.tokens_per_second(placed(forecast, Point(arm, logit_share)))


def first_as_fast(forecast: Forecast, arm: Configuration, wanted: float) -> float | None:
    """The smallest logit(u) at which the arm is expected to reach so many tokens/s; None: it never does."""
    low, high = forecast.lowest, forecast.highest
    return _first(lambda at: speed_at(forecast, arm, at) >= wanted, low, high)


def _first(holds: Callable[[float], bool], low: float, high: float) -> float | None:
    if holds(low):
        return low
    if not holds(high):
        return None
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
