"""Frozen configurations put to the test: in which order, how long, and what each showed.

Knows candidates as growing prefixes of paired gradings. Knows nothing of models, tasks or thresholds: that the
configurations were frozen before their outcomes were seen is the caller's part of the guarantee.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from scipy.stats import beta, binom

from fsd_calib.certification.bounds import require_level
from fsd_calib.certification.claim import Claim
from fsd_calib.certification.outcomes import Outcomes, Paired

# MERGED: """When to give a candidate up: no outcome of the rest that can be hoped for would let it pass.
#
# Knows a claim and a prefix. Giving up only ever denies a certificate, so no guarantee hangs on it.
# """


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


__all__ = ["Claim", "Evidence", "Outcomes", "Paired", "Verdict", "bound_together", "certify_sequence"]


@dataclass(frozen=True)
class Evidence:
    """What one configuration showed on what was seen of it. Each bound by itself holds at 1 - delta."""

    paired: Paired
    p_value: float | None  # None: nothing was wanted; 1: given up before all was seen
    lower_bound: float  # of retention; 0 where the target solved nothing
    accuracy_bound: float  # of the fuzzy rule's absolute accuracy

    @property
    def outcomes(self) -> Outcomes:
        return self.paired.outcomes


@dataclass(frozen=True)
class Verdict:
    """`passed`: index of the last configuration that passed, None where the first failed.

    `tested` holds the evidence from the first to the one that failed, which is last, or to the end.
    """

    passed: int | None
    tested: tuple[Evidence, ...]


def certify_sequence(candidates: Iterable[Iterable[Paired]], claim: Claim, delta: float) -> Verdict:
    """Tests frozen configurations, safest first, each at the full `delta`, until one fails.

    Fixed-sequence testing: the chance that any configuration passes of which the claim is not true is at most
    `delta`, as far as the claim's test keeps its size. Nothing is asked for beyond what the decision needs.

    Args:
        candidates: of each, growing prefixes of the certification part, the whole last. Betting may decide on any;
            the score test on the whole only, but either gives up on a prefix where it is futile to go on.
        claim: without `wanted` it shows nothing but bounds, which hold for one configuration: the first is
            bounded and passes, the rest is not looked at.

    Raises:
        UsageError: the target solved nothing, and the claim is about retention; `delta` is out of range.
        ValueError: the score test is given less than the whole.
    """
    require_level(delta)
    if claim.wanted is None:
        first = [_bounded(_whole(prefixes, claim), claim, delta) for prefixes in islice(candidates, 1)]
        return Verdict(0 if first else None, tuple(first))
    tested, passing = list[Evidence](), 0
    for prefixes in candidates:
        tested.append(_test(prefixes, claim, delta))
        passing = _passing([e.p_value for e in tested if e.p_value is not None], delta)
        if passing < len(tested):
            break
    return Verdict(passing - 1 if passing else None, tuple(tested))


def bound_together(configurations: Sequence[Paired], claim: Claim, delta: float) -> tuple[Evidence, ...]:
    """Bounds of whole configurations that hold for all of them at once: each at delta / their number (Bonferroni).

    All retention bounds together hold at 1 - `delta`, and all accuracy bounds together do.
    """
    return tuple(_bounded(paired, claim, delta / len(configurations)) for paired in configurations)


def _test(prefixes: Iterable[Paired], claim: Claim, delta: float) -> Evidence:
    seen = None
    for seen in prefixes:
        if seen.problems == claim.problems or (claim.any_time and claim.p_value(seen) <= delta):
            break
        if is_futile(seen, claim, delta):
            return Evidence(seen, 1.0, *claim.bounds(seen, delta, any_time=True))
    paired = _complete(seen, claim)
    return Evidence(paired, claim.p_value(paired), *claim.bounds(paired, delta))


def _bounded(paired: Paired, claim: Claim, delta: float) -> Evidence:
    return Evidence(paired, None, *claim.bounds(paired, delta))


def _whole(prefixes: Iterable[Paired], claim: Claim) -> Paired:
    seen = None
    for seen in prefixes:
        if seen.problems == claim.problems:
            break
    return _complete(seen, claim)


def _complete(seen: Paired | None, claim: Claim) -> Paired:
    """The score test looks once, at the whole; to decide on less because the rest did not come is to peek."""
    if seen is None:
        raise ValueError("a candidate without outcomes")
    if not claim.any_time and claim.problems not in (None, seen.problems):
        raise ValueError(f"a candidate ended after {seen.problems} of {claim.problems} problems")
    return seen


def _passing(p_in_order: Sequence[float], delta: float) -> int:
    """How many of the first configurations pass."""
    from mapie.risk_control import control_fwer  # takes a second and a half

    return len(control_fwer(np.array(p_in_order), delta, "fixed_sequence"))
