"""The harm rate: how much of what the target solves the fuzzy rule loses, and an upper bound of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from scipy.special import ndtri

from fsd_calib.certification import betting_test, bounds
from fsd_calib.certification.bounds import largest
from fsd_calib.certification.claim import Claim
from fsd_calib.certification.outcomes import Paired

# MERGED: """The difference in accuracy, fuzzy rule less target, with an interval that may be read beside a retention."""


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
        return Harm(rate, bounds.at_most(lost, right, delta))
    return Harm(rate, max(1 - _kept(paired, claim, delta), rate))  # betting may have been surer before it ended


def _kept(paired: Paired, claim: Claim, delta: float) -> float:
    """At least this share of what the target solves is solved by both."""
    target, both = paired.target.mean(1), (paired.target & paired.fuzzy).mean(1)
    whole = claim.problems if claim.guarantee == "dataset" else None
    return largest(lambda share: float(betting_test.p_values(target, both, share, whole)), delta)


class Difference(NamedTuple):
    """low, high: a two-sided interval."""

    value: float
    low: float
    high: float


def difference_of(paired: Paired, confidence: float) -> Difference:
    """The adjusted Wald interval of paired proportions, which counts one loss and one gain more than there were
    (Bonett and Price, Journal of Educational and Behavioral Statistics 37, 2012).

    With several seeds the problem is the unit, a loss or gain being one with all of them. `paired` must be a sample
    whose size the outcomes did not decide.
    """
    change = paired.fuzzy.mean(1) - paired.target.mean(1)  # (problems,)
    n = paired.problems + 2
    centre = float(change.sum()) / n
    variance = (float(change @ change) + 2) / n - centre**2
    reach = float(ndtri((1 + confidence) / 2)) * (variance / n) ** 0.5
    return Difference(float(change.mean()), max(centre - reach, -1.0), min(centre + reach, 1.0))
