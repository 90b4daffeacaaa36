"""What a calibration can be expected to show, and how long it takes, from a first handful of problems.

It promises nothing: the test itself looks at none of this.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.stats import beta

from fsd_calib.calibration.numerical_floor import Floor
from fsd_calib.certification.claim import Claim
from fsd_calib.certification.outcomes import Paired
from fsd_calib.certification.power import least_problems, power, problems_needed
from fsd_calib.formatting import level
from fsd_calib.measuring.measurement import Measurement
from fsd_decoding.errors import UsageError

CHANCE = 0.8  # to certify what is so: what "likely" means here
_CAUTION = 0.8  # the chance that the churn is not above what is planned with
_ABOVE = 0.02  # beyond a wish that losing nothing does not meet
_HALVINGS = 20  # of an interval at most 1 long


@dataclass(frozen=True)
class Handful:
    """The first problems of the tuning part: the target, the lossless rule, and a fuzzy setting that may come out."""

    problems: int
    accuracy: float  # of the target
    numerical_churn: float  # share of outcomes that flip between the target and the lossless rule, with the first seed
    churn: float  # between the target and the fuzzy setting
    retention: float | None  # of that; None: the target solved nothing

    @classmethod
    def of(cls, target: Measurement, lossless: Measurement, fuzzy: Measurement) -> Handful:
        """From measurements on the same problems. With several seeds, other shares are of (problem, seed) pairs."""
        return cls(
            target.problems,
            target.accuracy,
            float((target.correct[:, 0] != lossless.correct[:, 0]).mean()),
            float((target.correct != fuzzy.correct).mean()),
            fuzzy.accuracy / target.accuracy if target.accuracy else None,
        )

    @property
    def floor(self) -> Floor:
        """How often rounding alone flips an outcome."""
        return Floor.of(round(self.problems * self.numerical_churn), self.problems)

    @property
    def likely_accuracy(self) -> float:
        """The target's, as Jeffreys' prior has its mean: neither 0 nor 1, which a handful cannot show."""
        return (self.problems * self.accuracy + 0.5) / (self.problems + 1)

    @property
    def cautious_churn(self) -> float:
        """At most so many outcomes flip, with four chances in five (Jeffreys' interval, Brown, Cai, DasGupta 2001)."""
        flipped = self.problems * max(self.churn, self.numerical_churn)
        return float(beta.ppf(_CAUTION, flipped + 0.5, self.problems - flipped + 0.5))


@dataclass(frozen=True)
class Prospect:
    """If a setting truly keeps so much."""

    truth: float  # retention, or accuracy
    chance: float | None  # that the certification part shows what is wanted; None: nothing is wanted
    needed: int | None  # problems for a chance of .8; None: no number gives it, or nothing is wanted
    bound: float  # the most that is shown with a chance of .8


@dataclass(frozen=True)
class Effort:
    """One step of the work."""

    step: str
    decodings: int
    seconds_each: float

    @property
    def seconds(self) -> float:
        return self.decodings * self.seconds_each


@dataclass(frozen=True)
class Plan:
    claim: Claim
    delta: float  # the level of the test
    certification: int  # problems there are
    handful: Handful
    prospects: tuple[Prospect, ...]  # the best truth first
    least_truth: float | None  # what a setting must keep to pass with a chance of .8; None: even the best does not
    efforts: tuple[Effort, ...]

    @property
    def seconds(self) -> float:
        return sum(effort.seconds for effort in self.efforts)


def make_plan(
    claim: Claim, handful: Handful, certification: int, delta: float, efforts: tuple[Effort, ...] = ()
) -> Plan:
    """What `certification` problems can show at level `delta`, by the score test with one seed a problem."""
    odds = _odds(claim, handful, delta)
    best, middle = _truths(claim, handful)
    prospects = tuple(odds.prospect(truth, certification) for truth in (best, middle))
    least = odds.least_truth(best, certification)
    return Plan(claim, delta, certification, handful, prospects, least, efforts)


def expected_efforts(
    *, tuning: int, certification: int, searched: int, candidates: int, timed: int,
    exact_seconds: float, fuzzy_seconds: float, timed_seconds: float,
) -> tuple[Effort, ...]:  # fmt: skip
    """The steps of a calibration.

    Args:
        tuning, certification: problems.
        searched: decodings that the search is expected to take.
        candidates: frozen settings, all of which are tested at most.
        timed: decodings for the speeds: problems x configurations x repeats.
        exact_seconds, fuzzy_seconds: a decoding by target or lossless rule, on average, and a fuzzy one, as
            measured on the handful in the calibration's own batches. timed_seconds: one at --serve-batch.
    """
    each = (exact_seconds + candidates * fuzzy_seconds) / (1 + candidates)
    return (
        Effort("baseline", 2 * tuning, exact_seconds),
        Effort("search", searched, fuzzy_seconds),
        Effort("certification, at most", (1 + candidates) * certification, each),
        Effort("timing", timed, timed_seconds),
    )


def check_enough(
    claim: Claim, certification: int, delta: float, accuracy: float = 1.0, seeds: int = 1, left_out: int = 0
) -> None:
    """Refuses a wish that so few problems cannot show even if no outcome flips.

    Args:
        accuracy: of the target; before anything is known 1, with which fewest problems do.
        left_out: problems that there were beside these, but were tuned on before.

    Raises:
        UsageError: with the number of problems needed.
    """
    if claim.wanted is None or claim.guarantee == "dataset":
        return
    needed = _least(claim, delta, accuracy, seeds)
    if needed is not None and certification < needed:
        what = "accuracy" if claim.acc == "absolute" else "retention"
        tuned = f" ({left_out:,} of {certification + left_out:,} were tuned on before)" if left_out else ""
        raise UsageError(
            f"there are {certification:,} problems to certify on{tuned}; to show {what} {claim.wanted:g} at level "
            f"{level(delta)} (which falls with every attempt on the same problems) takes at least {needed:,} even if "
            "nothing is lost: give more or other problems, or a lower --min-acc or --confidence"
        )


def _least(claim: Claim, delta: float, accuracy: float, seeds: int) -> int | None:
    """The fewest problems that pass the claim's own test where the target and the fuzzy rule solve the same ones."""
    assert claim.wanted is not None
    solved = 1.0 if claim.acc == "absolute" else accuracy
    if claim.wanted >= 1 or not solved:  # only gains can show it
        return least_problems(accuracy=solved, wanted=claim.wanted, delta=delta)
    wrong = int(solved < 1)  # beside a target that may gain something, another test decides
    low, high = 0, 1  # problems that both solve
    while not _passes_unlost(claim, high, wrong, seeds, delta):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _passes_unlost(claim, middle, wrong, seeds, delta) else (middle, high)
    return math.ceil(high / solved)


def _passes_unlost(claim: Claim, right: int, wrong: int, seeds: int, delta: float) -> bool:
    both = np.repeat([True, False], [right, wrong])[:, None].repeat(seeds, 1)
    return claim.p_value(Paired(both, both)) <= delta


@dataclass(frozen=True)
class _Odds:
    """How the test fares, by truth. Absolute accuracy is retention beside a target that solves everything."""

    claim: Claim
    accuracy: float
    churn: float  # where the truth allows it
    delta: float

    def prospect(self, truth: float, problems: int) -> Prospect:
        share = self.claim.wanted
        bound, _ = _crossing(lambda goal: self.chance(problems, truth, goal) < CHANCE, 0.0, truth)
        if share is None:
            return Prospect(truth, None, None, bound)
        return Prospect(truth, self.chance(problems, truth, share), self.needed(truth, problems), bound)

    def chance(self, problems: int, truth: float, goal: float) -> float:
        """That so many problems show `wish`."""
        if self.claim.guarantee == "dataset":  # all of it is decoded, so nothing is left to chance
            return float(truth >= goal and problems > 0)
        return power(problems=problems, wanted=goal, delta=self.delta, **self._population(truth))

    def needed(self, truth: float, problems: int) -> int | None:
        assert self.claim.wanted is not None
        if self.claim.guarantee == "dataset":
            return problems if truth >= self.claim.wanted else None
        return problems_needed(wanted=self.claim.wanted, delta=self.delta, chance=CHANCE, **self._population(truth))

    def least_truth(self, best: float, problems: int) -> float | None:
        share = self.claim.wanted
        if share is None or self.chance(problems, best, share) < CHANCE:
            return None
        return _crossing(lambda truth: self.chance(problems, truth, share) >= CHANCE, min(share, best), best)[1]

    def _population(self, truth: float) -> dict[str, float]:
        """Arguments of `power`: the churn is as planned, unless the truth takes more or leaves room for less."""
        gap = (1 - truth) * self.accuracy  # losses less gains
        least, most = abs(gap), min(2 * (1 - self.accuracy) + gap, 2 * self.accuracy - gap)
        return {"accuracy": self.accuracy, "churn": max(least, min(self.churn, most)), "retention": truth}


def _odds(claim: Claim, handful: Handful, delta: float) -> _Odds:
    if claim.acc == "absolute":
        return _Odds(claim, 1.0, 0.0, delta)
    return _Odds(claim, handful.likely_accuracy, handful.cautious_churn, delta)


def _truths(claim: Claim, handful: Handful) -> tuple[float, float]:
    """Nothing lost, and half of what may be; for a wish beyond that a little above it, or all that there can be."""
    unlost, most = (handful.likely_accuracy, 1.0) if claim.acc == "absolute" else (1.0, 1 / handful.likely_accuracy)
    if claim.wanted is None:
        return unlost, 0.95 * unlost
    best = unlost if claim.wanted < unlost else min(claim.wanted + _ABOVE, most)
    return best, (best + (claim.wanted if claim.wanted < best else unlost)) / 2


def _crossing(holds: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """Where something begins to hold: the last place without and the first with, or as near as halving gets."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return low, high
