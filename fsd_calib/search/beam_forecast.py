"""Forecasts for beams, from layers that were drafted losslessly."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fsd_calib.engines.beams import Layers
from fsd_calib.measuring.measurement import Measurement
from fsd_calib.search.forecast import HIGHEST, LOWEST, POINTS, Counts, finite, reached
from fsd_calib.search.space import logit
from fsd_collectors.replay import CostModel
from fsd_decoding.profile.setting import Setting


class BeamForecast:
    """Takes layers to end a round as often as they do losslessly in the same place, but for those that T keeps.

    A T is known by the share of such layers that it keeps. Implements `CountingForecast`. What a fuzzy rule goes on
    from differs from lossless layers, which the search corrects by its trials.

    Args:
        layers: by score.
        costs: of a round at the batch size that will be served, by drafted layer.
    """

    def __init__(self, layers: Mapping[str, Layers], costs: CostModel) -> None:
        self._layers, self._costs = layers, costs
        self._grid = np.linspace(logit(LOWEST), logit(HIGHEST), POINTS)
        self.lowest, self.highest = float(self._grid[0]), float(self._grid[-1])
        shares = 1 / (1 + np.exp(-self._grid))
        self._quantiles = {
            score: np.quantile(found.scores, shares, method="inverted_cdf") if len(found.scores) else shares
            for score, found in layers.items()
        }
        self._scales = {score: finite(thresholds) for score, thresholds in self._quantiles.items()}

    def threshold(self, arm: Setting, logit_share: float) -> float:
        """Returns the T that keeps this share of the layers that end lossless rounds."""
        return float(np.interp(logit_share, self._grid, self._scales[arm.score]))

    def reaches(self, arm: Setting, logit_share: float) -> bool:
        """Whether a finite T keeps this share."""
        return reached(self._grid, self._quantiles[arm.score], logit_share)

    def tokens_per_second(self, setting: Setting) -> float:
        return float(self._costs.tokens_per_second(*self.counts(setting)))

    def counts(self, setting: Setting) -> Counts:
        """Returns layers, rounds and drafted layers at a setting."""
        found, depth = self._layers[setting.score], setting.draft_length
        rounds = found.emitted / found.per_round(depth, setting.threshold)
        return Counts(found.emitted, rounds, rounds * depth)

    def measured(self, measurement: Measurement) -> float:
        return float(self._costs.tokens_per_second(measurement.tokens, measurement.rounds, measurement.drafted))
