"""A cost model from the seconds that rounds took, by draft length."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from scipy.optimize import nnls

from fsd_collectors.replay.cost import CostModel

_LEAST = 1e-9  # seconds; the least cost of a verification


def fit(seconds: Mapping[int, float], draft_step: float) -> CostModel:
    """Fits the line L (c + Δv) + (v + Δv) to the seconds of a round by draft length L, with relative errors.

    Rounds determine the two sums; `draft_step`, in seconds and at least 0, splits them. The split is rough where a
    clock saw only launches, or no draft phase; the sums, which all speeds follow from, are not. No cost is negative.
    """
    lengths, taken = np.array(list(seconds), np.float64), np.array(list(seconds.values()))
    rows = np.stack([lengths, np.ones_like(lengths)], 1) / taken[:, None]
    token, constant = (float(x) for x in nnls(rows, np.ones_like(taken))[0])
    constant = max(constant, _LEAST)
    position = min(max(token - draft_step, 0.0), constant)
    return CostModel(draft_step=token - position, verify=constant - position, position=position)
