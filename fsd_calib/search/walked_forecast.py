"""Forecasts for drafts whose rounds cannot be replayed at another length or shape: of trees, and by EAGLE heads."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fsd_calib.engines.configuration import Configuration
from fsd_calib.measuring.measurement import Measurement
from fsd_calib.search.forecast import HIGHEST, LOWEST, POINTS, Counts, finite
from fsd_calib.search.space import logit
from fsd_collectors.replay.blocks import Array
from fsd_collectors.replay.cost import CostModel
from fsd_collectors.replay.walks import Walked
from fsd_decoding.acceptance import rule_named

_X_FIRST = "fsd"  # the rule that goes on from x where D <= T, whatever y is


class WalkedForecast:
    """A forecast from rounds that were decoded losslessly, and walked again at every T.

    Rounds begin where lossless ones do; those of a fuzzy rule begin elsewhere, which the search corrects by its trials.
    Tokens per round at a draft length between two of those that were walked are interpolated in log L.

    Args:
        walked: by lossless rule and draft length; the first also serves rules whose lossless one is not among them.
        divergences: names.
        costs: of a round at the batch size that will be served, by level of a tree or token of a chain.
    """

    def __init__(
        self, walked: Mapping[str, Mapping[int, Walked]], divergences: tuple[str, ...], costs: CostModel
    ) -> None:
        self._walked, self._costs, self._usual = walked, costs, next(iter(walked.values()))
        self._grid = np.linspace(logit(LOWEST), logit(HIGHEST), POINTS)
        self.lowest, self.highest = float(self._grid[0]), float(self._grid[-1])
        shares = 1 / (1 + np.exp(-self._grid))
        deepest = self._usual[max(self._usual)].walks
        self._scales = {name: finite(deepest.scale(name, shares)) for name in divergences}
        self._rates: dict[tuple[str, str, int], Array] = {}

    def threshold(self, arm: Configuration, logit_share: float) -> float:
        """Returns the T at which D alone accepts this share of the tokens drafted along the target's text."""
        return float(np.interp(logit_share, self._grid, self._scales[arm.divergence]))

    def tokens_per_second(self, configuration: Configuration) -> float:
        return float(self._costs.tokens_per_second(*self.counts(configuration)))

    def counts(self, configuration: Configuration) -> Counts:
        """Returns tokens, rounds and levels drafted at a configuration."""
        lengths = sorted(self._usual)
        rates = [self._per_round(configuration, length) for length in lengths]
        per_round = float(np.interp(np.log(configuration.draft_length), np.log(lengths), rates))
        tokens = self._usual[lengths[-1]].tokens
        rounds = tokens / per_round
        return Counts(tokens, rounds, rounds * configuration.draft_length)

    def measured(self, measurement: Measurement) -> float:
        levels = measurement.rounds * measurement.configuration.draft_length if measurement.drafted else 0
        return float(self._costs.tokens_per_second(measurement.tokens, measurement.rounds, levels))

    def _per_round(self, configuration: Configuration, length: int) -> float:
        """Tokens per round at a draft length that was walked."""
        walked = self._walked_for(configuration.rule)[length]
        per_round = walked.tokens / walked.rounds
        if configuration.threshold is not None:
            thresholds, rates = self._scales[configuration.divergence], self._rates_of(configuration, length)
            per_round *= float(np.interp(configuration.threshold, thresholds, rates)) / walked.walks.exactly
        return per_round

    def _walked_for(self, rule: str) -> Mapping[int, Walked]:
        return self._walked.get(rule_named(rule).lossless, self._usual)

    def _rates_of(self, configuration: Configuration, length: int) -> Array:
        """Tokens per round at every T of the scale."""
        rule, name = configuration.rule, configuration.divergence
        if (rule, name, length) not in self._rates:
            walks = self._walked_for(rule)[length].walks
            x_first = rule_named(rule).name == _X_FIRST
            self._rates[rule, name, length] = walks.tokens_per_round(name, self._scales[name], x_first)
        return self._rates[rule, name, length]
