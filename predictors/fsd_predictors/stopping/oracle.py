"""The oracle: a round policy that knows which tokens will be accepted; an upper bound for stopping rules."""

from __future__ import annotations

import numpy as np

from fsd_collectors.replay.cases import REPLAYABLE, check_rule
from fsd_collectors.replay.rounds import RoundPolicy, RoundStarts
from fsd_predictors.features.features import Array


def oracle(rule: str) -> RoundPolicy:
    """Returns a policy that drafts just the tokens that `rule` will accept, for replay only.

    It drafts at least one token, since the draft model reads the last token of the round anyway.

    Raises:
        UsageError: the rule cannot be replayed.
    """
    check_rule(rule)
    exact, fuzzy = REPLAYABLE[rule].exact, REPLAYABLE[rule].fuzzy

    def accepts(starts: RoundStarts, lanes: Array, rows: Array) -> Array:
        alike = np.zeros(len(rows), bool) if exact is None else starts.columns[exact][rows]
        if not fuzzy or starts.divergence is None:
            return alike
        d = starts.columns[starts.divergence][rows]
        return alike | (np.isfinite(d) & (d <= starts.lanes.thresholds[lanes]))

    def lengths(starts: RoundStarts) -> Array:
        run, most = np.zeros(len(starts.rows), np.int64), starts.lanes.most
        lanes = np.arange(len(run))
        while len(lanes):
            rows = starts.rows[lanes] + run[lanes]
            within = (rows < starts.lanes.ends[lanes]) & (run[lanes] < most[lanes])
            lanes, rows = lanes[within], rows[within]
            lanes = lanes[accepts(starts, lanes, rows)]
            run[lanes] += 1
        return np.maximum(run, 1)

    return RoundPolicy((exact,) if exact else (), lengths)
