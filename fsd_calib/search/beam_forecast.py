"""Forecasts for beams, from layers that were drafted losslessly."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fsd_calib.engines.beams import Layers
from fsd_calib.measuring.measurement import Measurement
from fsd_calib.search.forecast import ByShare, Counts
from fsd_collectors.replay import CostModel
from fsd_decoding.profile.setting import Setting


class BeamForecast(ByShare):
    """Takes layers to end a round as often as they do losslessly in the same place, but for those that T keeps.

    Shares are of such layers. Implements `CountingForecast`. What a fuzzy rule goes on
    from differs from lossless layers, which the search corrects by its trials.

    Args:
        layers: by score.
        costs: of a round at the batch size that will be served, by drafted layer.
    """

    def __init__(self, layers: Mapping[str, Layers], costs: CostModel) -> None:
        self._layers = layers
        super().__init__(self._quantiles_of, costs)

    def _quantiles_of(self, shares: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        return {
            score: np.quantile(found.scores, shares, method="inverted_cdf") if len(found.scores) else shares
            for score, found in self._layers.items()
        }

    def counts(self, setting: Setting) -> Counts:
        found, depth = self._layers[setting.score], setting.draft_length
        rounds = found.emitted / found.per_round(depth, setting.threshold)
        return Counts(found.emitted, rounds, rounds * depth)

    def measured(self, measurement: Measurement) -> float:
        return float(self._costs.tokens_per_second(measurement.tokens, measurement.rounds, measurement.drafted))
