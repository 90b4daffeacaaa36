"""Bounds that hold given that the claim passed, which is when they are printed.

Who looks at outcomes only where they passed a test sees them better than they are: of settings that keep exactly 99 %
and passed a test for 98 %, every sixth measured bound lies above the truth. So the law of what passes is inverted
(Weinstein, Fithian and Benjamini, JASA 108, 2013). The closer a result is to failing, the less it shows beyond the
claim itself, and most were decided as soon as they passed. Of what passed at a look, all that passes at earlier ones is
better: outcomes are ordered by look, then by p-value (stage-wise; Jennison and Turnbull, Group Sequential Methods,
2000, section 8.4).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.special import bdtr, ndtri

from fsd_calib.certification.bounds import largest
from fsd_calib.certification.claim import Claim
from fsd_calib.certification.harm import difference_of
from fsd_calib.certification.looks import LEAST_DRIFT, Looks, Walk, combined
from fsd_calib.certification.multi_seed import FEW
from fsd_calib.certification.outcomes import Paired

_PRINTED = 3  # what shares the probability of error: lower bounds, which are wrong together, harm, and an upper end
_WAYS = 2  # to find a bound, of which the tighter one is printed
_HALVINGS = 60


@dataclass(frozen=True)
class GivenPassing:
    """Bounds that together hold with the claim's confidence among certificates that are printed.

    Attributes:
        kept: Lower bound of what was claimed, retention or accuracy.
        harm: Upper bound of the share of the target's right answers that is lost.
        difference: Interval of the fuzzy rule's accuracy minus the target's; None: of a claim of plain accuracy, whose
            test says nothing of the target.
    """

    kept: float
    harm: float
    difference: tuple[float, float] | None


def given_passing(paired: Paired, claim: Claim, delta: float) -> GivenPassing:
    """Returns the bounds of outcomes that passed.

    In simulations (benchmarks/validity.py) they are wrong together in at most .027 of 300 certificates of a population,
    where .05 is allowed. The upper end of the difference needs no correction: outcomes look better than they are, not
    worse.

    Args:
        paired: Outcomes up to the look at which they passed a test of size `delta`.
    """
    passed = _Passed(paired, claim, delta)
    share = (1 - claim.confidence) / _PRINTED
    kept = _kept(passed, share / _WAYS)
    difference = None
    if claim.acc == "retention":
        low = (kept - 1) * float(paired.units[0].sum()) / paired.problems
        difference = max(low, -1.0), difference_of(paired, 1 - 2 * share, claim)[2]
    return GivenPassing(kept, _harm(passed, share / _WAYS), difference)


@dataclass(frozen=True)
class _Passed:
    """Outcomes that passed, and the law of what passes."""

    paired: Paired
    claim: Claim
    delta: float

    @cached_property
    def looks(self) -> Looks:
        return self.claim.looks or Looks((self.paired.problems,))

    @cached_property
    def walk(self) -> Walk:
        return self.looks.walk(self.delta)

    @cached_property
    def look(self) -> int:
        return self.looks.problems.index(self.paired.problems)

    def level(self, share: float) -> float:
        """The level at this look of a test of `share` times the size."""
        return self.looks.level(self.paired.problems, share * self.delta)

    @cached_property
    def more_losses(self) -> int:
        """How many more problems and seeds that both solve may be lost, and the claim still passes at this look."""
        level = self.level(1.0)
        low, high = 0, int((self.paired.target & self.paired.fuzzy).sum()) + 1
        while high - low > 1:
            middle = (low + high) // 2
            passes = self.claim.p_value(_with_losses(self.paired, middle, self.looks)) <= level
            low, high = (middle, high) if passes else (low, middle)
        return low

    def share_as_good(self, as_good: float, just: float) -> float:
        """Returns the share of what passes that is as good as these outcomes or better, by stages.

        Args:
            as_good: The probability of that at this look alone, and `just` that to pass there.
        """
        if not 0 < just < 1:
            return as_good
        time, height = self.walk.times[self.look] ** 0.5, self.walk.heights[self.look]
        shift = max(height + float(ndtri(just)), LEAST_DRIFT * time)
        return self.walk.share_as_good(self.look, shift - float(ndtri(as_good)), shift / time)


def _kept(passed: _Passed, share: float) -> float:
    """Returns the better of two bounds, each of which is wrong in a `share` of what passes.

    One is the value at which outcomes that pass are as good as these, or better, with probability `share`. Above what
    is wanted the p-values of these outcomes, and of those that only just pass, say how likely either is at this look,
    and so how far the law of what passes is shifted. Below it p-values are too small to be known well: there the
    test's statistic is taken as a normal variable. The other is the bound at the level that this look has where all
    have `share` times `delta`: where the claim is true outcomes pass with a probability of `delta` at least.
    """
    paired, claim = passed.paired, passed.claim
    wanted, usual = claim.wanted, claim.bound(paired, passed.level(share))
    assert wanted is not None
    p = claim.p_value(paired)
    if passed.walk.share_as_good(passed.look, -float(ndtri(p)), 0.0) > share:
        return max(_below(passed, p, share), usual)
    most, only_just = (
        1.0 if claim.acc == "absolute" else math.inf,
        _with_losses(paired, passed.more_losses, passed.looks),
    )

    def unlikely(value: float) -> float:
        if not wanted < value <= most:
            return float(value > most)
        there = replace(claim, wanted=value)
        return passed.share_as_good(there.p_value(paired), there.p_value(only_just))

    return max(largest(unlikely, share), usual)


def _below(passed: _Passed, p: float, share: float) -> float:
    """Returns the better of the two bounds as it follows from the normal law, for outcomes too narrow for more."""
    paired, claim, wanted = passed.paired, passed.claim, passed.claim.wanted
    assert wanted is not None
    against, fuzzy = (float(each.sum()) for each in claim.judged(paired).units)
    observed, time = -float(ndtri(p)), passed.walk.times[passed.look] ** 0.5
    deviation = (fuzzy / (against + claim.all_dropped) - wanted) / observed
    if deviation <= 0:  # betting was sure before the last losses
        return 0.0
    low, high = LEAST_DRIFT, 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        as_good = passed.walk.share_as_good(passed.look, observed, middle)
        low, high = (low, middle) if as_good > share else (middle, high)
    by_share = time * low if low > LEAST_DRIFT else -math.inf
    return wanted + deviation * max(by_share, observed + float(ndtri(passed.level(share))))


def _harm(passed: _Passed, share: float) -> float:
    """Returns the better of two bounds of the harm rate, as `_kept` does.

    One is the rate at which so few losses, given that there are no more than pass, have probability `share`: given what
    the target solved and what was gained, passing depends on the losses alone, which are binomial, in units that are
    independent of each other. The other is Clopper and Pearson's bound.
    """
    paired, looks, unit = passed.paired, passed.looks, _lost_together(passed.paired)
    only_just = looks.stages(_with_losses(paired, passed.more_losses, looks))
    seen, times = zip(*((each.outcomes, time) for each, time in looks.stages(paired)), strict=True)
    lost = np.array([math.ceil(each.lost / unit) for each in seen])
    right = np.maximum([round(each.right / unit) for each in seen], np.maximum(lost, 1))
    more = [just.outcomes.lost - each.lost for (just, _), each in zip(only_just, seen, strict=True)]
    most = lost + np.floor_divide(more, unit)

    def plausible(rate: float) -> bool:
        """Whether so few losses are, in what passes and at the level of this look."""
        few, just = (float(combined(bdtr(losses, right, rate), times)) for losses in (lost, most))
        return few > passed.level(share) and passed.share_as_good(few, just) > share

    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if plausible(middle) else (low, middle)
    return high


def _lost_together(paired: Paired) -> float:
    """Returns how many losses, of problems and seeds, count as one.

    These are all seeds of a problem, and in groups as many more as the variance of their losses is larger than that of
    independent problems. Where few groups lost anything, they are a whole group.
    """
    if paired.groups is None:
        return float(paired.seeds)
    right, lost = paired.units[0], replace(paired, fuzzy=paired.target & ~paired.fuzzy).units[1]
    if np.count_nonzero(lost) < FEW:
        return float(paired.seeds * paired.unit_sizes.max())
    share = lost.sum() / right.sum()
    excess = lost - share * right
    return float(paired.seeds * max(1.0, excess @ excess / (right.sum() * share * (1 - share))))


def _with_losses(paired: Paired, more: int, looks: Looks) -> Paired:
    """Returns the grades with so many more losses, of all seeds of a problem before those of the next.

    Stages have them by how much there is to lose in each.
    """
    fuzzy, solved = paired.fuzzy.copy(), np.flatnonzero(paired.target & paired.fuzzy)
    ends = [each.end * paired.seeds for each in looks.seen(paired.problems)]
    counts = np.diff(np.searchsorted(solved, ends), prepend=0)
    in_turn = np.concatenate([(np.arange(count) + 0.5) / max(count, 1) for count in counts]).argsort(kind="stable")
    fuzzy.flat[solved[in_turn[:more]]] = False
    return replace(paired, fuzzy=fuzzy)
