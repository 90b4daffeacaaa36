"""When to give a candidate up: no outcome of the rest that can be hoped for would let it pass.

Knows a claim and a prefix. Giving up only ever denies a certificate, so no guarantee hangs on it.
"""

from __future__ import annotations

from scipy.stats import beta, binom

from fsd_calib.certifying.claim import Claim
from fsd_calib.certifying.outcomes import Paired

_DOUBT = 1e-3  # chance that the rest holds more gains than is allowed for


def is_futile(paired: Paired, claim: Claim, delta: float) -> bool:
    """Whether the claim fails though the rest loses nothing, and gains as often as what was seen lets one hope.

    Without a limit on gains nothing would ever be given up: half of the problems could undo any loss.
    """
    if claim.problems is None or paired.problems >= claim.problems:
        return False
    rest = claim.problems - paired.problems
    return all(claim.p_value(_hoped(paired, claim, rest, gains)) > delta for gains in (0, _gains(paired, rest)))


def _gains(paired: Paired, rest: int) -> int:
    """The most that the rest can be hoped to hold (Clopper and Pearson's bound of how frequent they are)."""
    gained = int((paired.fuzzy.sum(1) > paired.target.sum(1)).sum())
    frequent = beta.ppf(1 - _DOUBT, gained + 1, paired.problems - gained) if gained < paired.problems else 1.0
    return int(binom.ppf(1 - _DOUBT, rest, frequent))


def _hoped(paired: Paired, claim: Claim, rest: int, gains: int) -> Paired:
    """Where more than the target's accuracy is wanted, what it solves too is a step back."""
    assert claim.wanted is not None
    others = claim.wanted <= 1
    return paired.followed_by(False, True, gains).followed_by(others, others, rest - gains)
