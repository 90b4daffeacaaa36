"""The ceiling: a draft that knows what will be accepted. In replay only.

Knows what a rule accepts in traces. Knows no stopping rule.
"""

from __future__ import annotations

import numpy as np

from fsd_collectors.replay.cases import REPLAYABLE, check_rule
from fsd_collectors.replay.rounds import Begins, RoundPolicy
from fsd_predictors.features.features import Array


def oracle(rule: str) -> RoundPolicy:
    """Drafts what will be accepted under `rule` and nothing more, but one token at least: the draft reads on anyway.

    Raises:
        UsageError: the rule cannot be replayed.
    """
    check_rule(rule)
    exact, fuzzy = REPLAYABLE[rule].exact, REPLAYABLE[rule].fuzzy

    def accepts(begins: Begins, lanes: Array, rows: Array) -> Array:
        alike = np.zeros(len(rows), bool) if exact is None else begins.columns[exact][rows]
        if not fuzzy or begins.divergence is None:
            return alike
        d = begins.columns[begins.divergence][rows]
        return alike | (np.isfinite(d) & (d <= begins.lanes.thresholds[lanes]))

    def lengths(begins: Begins) -> Array:
        run, most = np.zeros(len(begins.rows), np.int64), begins.lanes.most
        lanes = np.arange(len(run))
        while len(lanes):
            rows = begins.rows[lanes] + run[lanes]
            within = (rows < begins.lanes.ends[lanes]) & (run[lanes] < most[lanes])
            lanes, rows = lanes[within], rows[within]
            lanes = lanes[accepts(begins, lanes, rows)]
            run[lanes] += 1
        return np.maximum(run, 1)

    return RoundPolicy((exact,) if exact else (), lengths)
