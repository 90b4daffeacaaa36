"""The harm rate: how much of what the target solves the fuzzy rule loses, and an upper bound of it."""

from __future__ import annotations

from dataclasses import dataclass

from fsd_calib.certifying import betting, binomial
from fsd_calib.certifying.bound import largest
from fsd_calib.certifying.claim import Claim
from fsd_calib.certifying.outcomes import Paired


@dataclass(frozen=True)
class Harm:
    """`rate` is lost / (both right + lost). `at_most`: the truth is not above, with the certificate's chance."""

    rate: float
    at_most: float


def harm_of(paired: Paired, claim: Claim, delta: float) -> Harm | None:
    """What the outcomes that a claim was decided on say of harm, at 1 - `delta`; None: the target solved nothing.

    Of one seed and all problems the losses are a binomial count among those that the target solved. Otherwise, with
    several seeds a problem or where it was the outcomes that ended the decoding, it is 1 - the retention of a rule
    that gains nothing, bounded by betting: the problem is the unit, and any moment is as good as the end.
    """
    lost, right = paired.outcomes.lost, paired.outcomes.both_right + paired.outcomes.lost
    if not right:
        return None
    rate = lost / right
    if paired.seeds == 1 and paired.problems == claim.problems and not claim.any_time:
        return Harm(rate, binomial.at_most(lost, right, delta))
    return Harm(rate, max(1 - _kept(paired, claim, delta), rate))  # betting may have been surer before it ended


def _kept(paired: Paired, claim: Claim, delta: float) -> float:
    """At least this share of what the target solves is solved by both."""
    target, both = paired.target.mean(1), (paired.target & paired.fuzzy).mean(1)
    whole = claim.problems if claim.guarantee == "dataset" else None
    return largest(lambda share: float(betting.p_values(target, both, share, whole)), delta)
