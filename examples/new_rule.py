"""A rule of one's own: at most one token of a round is another than the target's.

From the folder of this file: fsd-inspect --rule new_rule:OneSwap --threshold 0.4 "…"
"""

from __future__ import annotations

import math

from fsd_decoding.proposal import Proposal, Verdict
from fsd_decoding.rules import Rule, rule_named


class OneSwap(Rule):
    """As `fsd-coupled`, but of the tokens that the target would not have written only the first of a round is kept."""

    lossless = "coupled"  # what it is at T < 0
    bounds_score = True  # T is compared with a score, so that it can be calibrated
    replayed_as = "fsd-coupled"  # forecasts of speed take it for that; what is measured is its own

    def judge(self, proposal: Proposal) -> Verdict:
        exact = rule_named("coupled").judge(proposal)
        earlier = (~exact.accepted).cumsum(1) > 1  # (B, L) a token before x in the round was not the target's either
        scores = proposal.compared(exact.accepted).masked_fill(earlier, math.inf)  # no T keeps x then
        kept = exact.accepted | proposal.within_threshold(scores)
        return Verdict(kept, exact.fallback, scores, by_score=~exact.accepted)
