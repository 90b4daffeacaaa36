"""Does a fuzzy configuration keep the wanted share of the target's accuracy? Test, bound, and order of testing.

Knows paired outcomes as counts, and the numbers computed from them. Knows nothing of models, tasks or thresholds:
that the configurations were frozen before their outcomes were seen is the caller's part of the guarantee.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from itertools import islice

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import bdtr, ndtr

from fsd_decoding.errors import UsageError

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

_FEW = 5  # fewer flipped outcomes than this: the normal approximation gives way to an exact test
_NO_VARIANCE = 1e-12  # of a count; below is rounding
_HALVINGS = 60  # of an interval as long as the bound: more than a float can tell apart

METHOD = "paired-ratio score test, exact below 5 discordant pairs; fixed sequence"


@dataclass(frozen=True)
class Outcomes:
    """How many problems target alone and the fuzzy rule solved, compared problem by problem."""

    both_right: int
    lost: int  # the target alone was right
    gained: int  # the fuzzy rule alone was right
    both_wrong: int

    def __post_init__(self) -> None:
        if min(astuple(self)) < 0:
            raise ValueError(f"{self} has a negative count")

    @classmethod
    def of(cls, target: Sequence[bool], fuzzy: Sequence[bool]) -> Outcomes:
        """From gradings in the same order of problems."""
        seen = Counter((bool(t), bool(f)) for t, f in zip(target, fuzzy, strict=True))
        return cls(seen[True, True], seen[True, False], seen[False, True], seen[False, False])

    @property
    def problems(self) -> int:
        return self.both_right + self.lost + self.gained + self.both_wrong

    @property
    def retention(self) -> float:
        """Accuracy of the fuzzy rule over the target's. UsageError: the target solved nothing."""
        _require_solved(self)
        return (self.both_right + self.gained) / (self.both_right + self.lost)

    @property
    def churn(self) -> float:
        """Share of problems whose outcome flipped either way."""
        return (self.lost + self.gained) / self.problems if self.problems else 0.0


def p_values(
    both_right: ArrayLike, lost: ArrayLike, gained: ArrayLike, both_wrong: ArrayLike, wanted: ArrayLike
) -> Floats:
    """One-sided p-values of H0: retention <= wanted, elementwise over broadcast counts; never NaN.

    The score test of the ratio of paired proportions (Nam and Blackwelder, Statistics in Medicine 21, 2002;
    Tang et al., Statistics in Medicine 22, 2003); where fewer than 5 outcomes flipped, an exact binomial test
    of the losses alone. Where the target solved nothing, p = 1.

    How far to trust it: the size, which is the chance of p <= delta where retention = wanted, summed exactly
    over the outcomes of some 27,000 populations (50 to 800 problems, for wanted above 1 10 to 500; any accuracy;
    churn up to .2 above the least possible), is at most

        delta                   .005    .01     .05     .1
        wanted .8 to 1         1.04    1.08    1.09    1.25   times delta
        wanted 1.005 to 1.2     .90     .93     .99     .99   times delta

    and mostly below 1. The excess is the discreteness of counts, gone with many flips. That the data choose the
    test does not raise it: the score test alone has 1.24 delta at .05 and 1.87 at .1. Without the correction in
    `_score_test`, wanted above 1 has up to 2 delta. Below 50 problems all of it grows: 1.5 delta around 10.
    """
    counts = np.broadcast_arrays(*(np.asarray(c, np.int64) for c in (both_right, lost, gained, both_wrong)))
    n11, n10, n01, n00 = counts
    ratio = np.asarray(wanted, np.float64)
    few = n10 + n01 < _FEW
    p = np.where(few, _exact_test(n11, n10, ratio), _score_test(n11, n10, n01, n00, ratio))
    return np.where(n11 + n10 > 0, p, 1.0)


def _exact_test(n11: Counts, n10: Counts, ratio: Floats) -> Floats:
    """P(at most n10 losses among the target's n11 + n10), at the smallest chance of a loss under H0.

    retention = 1 - P(lost | target right) + P(gained) / P(target right) >= 1 - P(lost | target right), so
    retention <= ratio implies P(lost | target right) >= 1 - ratio: conservative by what gains would give.
    """
    return np.asarray(bdtr(n10, n11 + n10, np.clip(1.0 - ratio, 0.0, 1.0)), np.float64)


def _score_test(n11: Counts, n10: Counts, n01: Counts, n00: Counts, ratio: Floats) -> Floats:
    """P(Z > z), z = sum of B - ratio A over its standard deviation under the constrained maximum likelihood.

    ratio > 1: H0 then demands gains, few and right-skewed, of which the normal law makes too little in the
    tail; a continuity correction of half a problem and the first Edgeworth term mend that.
    """
    excess = n11 + n01 - ratio * (n11 + n10)
    variance, third = _null_moments(n11, n10, n01, n00, ratio)
    above = ratio > 1.0
    deviation = np.sqrt(np.maximum(variance, _NO_VARIANCE))
    z = (excess - 0.5 * above) / deviation
    skewness = np.maximum(third, 0.0) / deviation**3
    density = np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    edgeworth = above * density * skewness * np.maximum(z * z - 1, 0.0) / 6
    return np.asarray(np.minimum(ndtr(-z) + edgeworth, 1.0), np.float64)


def _null_moments(n11: Counts, n10: Counts, n01: Counts, n00: Counts, ratio: Floats) -> tuple[Floats, Floats]:
    """Second and third moments of the sum of Z = B - ratio A, where retention = ratio fits the counts best.

    The best P(lost) is the larger root of a quadratic equation; both_wrong keeps its share. Source: DESIGN
    section 10, from the papers named at `p_values`.
    """
    solved = n11 + n10 + n01  # by either
    n = np.maximum(solved + n00, 1)
    a = n * (1 + ratio)
    b = (n11 + n10) * ratio**2 - (n11 + n01 + 2 * n10)
    least = (1 - ratio) * solved / n
    p_lost = (-b + np.sqrt(np.maximum(b * b - 4 * a * n10 * least, 0.0))) / (2 * a)
    p_gained = (p_lost - least) / np.maximum(ratio, 1.0)  # exact from ratio = 1 on, where `third` is asked for
    p_both = solved / n - p_lost - p_gained
    variance = a * p_lost - n * least
    third = n * (p_both * (1 - ratio) ** 3 - p_lost * ratio**3 + p_gained)
    return np.asarray(variance, np.float64), np.asarray(third, np.float64)


def p_value(outcomes: Outcomes, wanted: float) -> float:
    """One-sided p-value of H0: retention <= wanted; see `p_values`.

    Raises:
        UsageError: the target solved nothing, or `wanted` is no positive number.
    """
    _require_solved(outcomes)
    if not 0 < wanted < math.inf:
        raise UsageError(f"the wanted retention is {wanted}; it must be above 0 (0.98 keeps 98 %)")
    o = outcomes
    return float(p_values(o.both_right, o.lost, o.gained, o.both_wrong, wanted))


def lower_bound(outcomes: Outcomes, confidence: float) -> float:
    """The largest retention r with `p_value(outcomes, r) <= 1 - confidence`; 0 where there is none.

    Raises:
        UsageError: the target solved nothing, or `confidence` is not in (0, 1).
    """
    _require_solved(outcomes)
    delta = _delta(confidence)
    low, high = 0.0, 1.0
    while p_value(outcomes, high) <= delta:
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if p_value(outcomes, middle) <= delta else (low, middle)
    return low


@dataclass(frozen=True)
class Evidence:
    """What one configuration showed. `p_value` None: nothing was wanted, the bound is all there is."""

    outcomes: Outcomes
    p_value: float | None
    lower_bound: float  # for this configuration alone, at the confidence of the sequence


@dataclass(frozen=True)
class Verdict:
    """`passed`: index of the last configuration that passed, None where the first failed.

    `tested` holds the evidence from the first to the one that failed, which is last, or to the end.
    """

    passed: int | None
    tested: tuple[Evidence, ...]


def certify_sequence(outcomes_in_order: Iterable[Outcomes], wanted: float | None, confidence: float) -> Verdict:
    """Tests frozen configurations, safest first, each at the full 1 - confidence, until one fails.

    Fixed-sequence testing: the chance that any configuration passes whose retention is not above `wanted` is
    at most 1 - confidence, as far as `p_values` keeps its size. Outcomes are asked for one at a time, and no
    further than the sequence goes.

    Args:
        wanted: retention to be shown. None shows nothing but a bound, which holds for one configuration:
            the first is bounded and passes, the rest is not looked at.

    Raises:
        UsageError: the target solved nothing, or `wanted` or `confidence` is out of range.
    """
    delta, tested, passing = _delta(confidence), list[Evidence](), 0
    if wanted is None:
        first = [Evidence(o, None, lower_bound(o, confidence)) for o in islice(outcomes_in_order, 1)]
        return Verdict(0 if first else None, tuple(first))
    for outcomes in outcomes_in_order:
        tested.append(_evidence(outcomes, wanted, confidence))
        passing = _passing([e.p_value for e in tested if e.p_value is not None], delta)
        if passing < len(tested):
            break
    return Verdict(passing - 1 if passing else None, tuple(tested))


def _evidence(outcomes: Outcomes, wanted: float, confidence: float) -> Evidence:
    p, bound = p_value(outcomes, wanted), lower_bound(outcomes, confidence)
    # Test and bound say the same; rounding in the last bit of the bisection must not make them differ.
    return Evidence(outcomes, p, max(bound, wanted) if p <= _delta(confidence) else bound)


def _passing(p_in_order: Sequence[float], delta: float) -> int:
    """How many of the first configurations pass."""
    from mapie.risk_control import control_fwer  # takes a second and a half

    return len(control_fwer(np.array(p_in_order), delta, "fixed_sequence"))


def _delta(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise UsageError(f"confidence is {confidence}; it must lie between 0 and 1, as 0.95 does")
    return 1 - confidence


def _require_solved(outcomes: Outcomes) -> None:
    if not outcomes.both_right + outcomes.lost:
        raise UsageError(
            f"the target solved none of {outcomes.problems} problems, so retention is undefined; "
            "look at its prompts and answers, or use another target"
        )
