"""The values of a knob as a search sees them: places on a ladder, each with the speed that was measured at first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from sklearn.isotonic import IsotonicRegression

from fsd_calib.measuring.measurement import Measurement
from fsd_decoding.profile.setting import Setting

_APART = 0.5  # on the scale of logit(u): what a value shows says something about those beside it
_END = 0.0625  # less than the search's step, so that it finds the last value, too


class LadderForecast:
    """Speeds of a knob's values. Implements `Forecast`, in which a share is a place on the ladder.

    Args:
        ladder: The settings, the strictest first.
        speeds: Tokens/s of each, and of the lossless reference. They grow with the values, up to noise.
        lossless: The reference's.
    """

    lowest = 0.0

    def __init__(self, ladder: Sequence[Setting], speeds: Mapping[Setting, float], lossless: float) -> None:
        self._ladder, self._lossless = tuple(ladder), lossless
        logs = np.log([speeds[setting] for setting in ladder])
        rising = np.exp(IsotonicRegression().fit_transform(np.arange(len(logs)), logs))
        self._speeds = dict(zip(self._ladder, map(float, rising), strict=True))
        self.highest = _APART * (len(self._ladder) - 1) + _END

    def threshold(self, arm: Setting, logit_share: float) -> float:
        found = self._ladder[min(int(logit_share / _APART), len(self._ladder) - 1)].threshold
        assert found is not None
        return found

    def tokens_per_second(self, setting: Setting) -> float:
        return self._lossless if setting.threshold is None else self._speeds[setting]

    def measured(self, measurement: Measurement) -> float:
        """A server does not tell what its rounds cost, so it is what was measured at first."""
        return self.tokens_per_second(measurement.setting)
