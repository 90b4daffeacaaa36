"""Plan of a calibration: what it can be expected to show and how long it takes, from a pilot on the first problems.

A plan is a forecast; the test itself uses none of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import beta

from fsd_calib.calibrate_options import Goal
from fsd_calib.calibration.memory import MemoryPlan
from fsd_calib.certification.bounds import Floor
from fsd_calib.certification.claim import Claim
from fsd_calib.certification.looks import NOTHING, Begun, Looks
from fsd_calib.certification.multi_seed import FEW
from fsd_calib.certification.outcomes import Paired
from fsd_calib.certification.power import fewest, independent_worth, least_problems, power, problems_needed
from fsd_calib.measuring.measurement import Measurement
from fsd_common.argument_checks import named
from fsd_common.errors import UsageError
from fsd_common.formatting import level
from fsd_decoding.profile.fields import Rounds
from fsd_decoding.profile.parts import EngineInfo

CHANCE = 0.8  # power of the test that is planned for: the probability of certifying what is true
_CAUTION = 0.8  # the probability that the churn is not above the planned one
_ABOVE = 0.02  # how far above a goal that losing nothing does not meet the best truth is assumed
_BISECTIONS = 20  # of an interval at most 1 long: to PRECISION


@dataclass(frozen=True)
class Pilot:
    """Counts on the first tuning problems: the target, the lossless rule, and one plausible fuzzy setting."""

    problems: int
    accuracy: float  # of the target
    numerical_churn: float | None  # share of outcomes that flip between the target and the lossless rule, by rounding
    churn: float  # between the target and the fuzzy setting
    retention: float | None  # of the fuzzy setting; None: the target solved nothing
    worth: float = 1.0  # independent problems that one in a group counts as

    @classmethod
    def of(cls, target: Measurement, lossless: Measurement | None, fuzzy: Measurement, claim: Claim) -> Pilot:
        """Returns the pilot of measurements on the same problems; `lossless` is None where its noise is its own.

        With several seeds all shares but the numerical churn are of (problem, seed) pairs.

        Args:
            claim: what is to be shown, by which flips of a group are weighed.
        """
        return cls(
            target.problems,
            target.accuracy,
            None if lossless is None else float((target.correct[:, 0] != lossless.correct[:, 0]).mean()),
            float((target.correct != fuzzy.correct).mean()),
            fuzzy.accuracy / target.accuracy if target.accuracy else None,
            _worth(Paired.of(target, fuzzy), claim),
        )

    @property
    def floor(self) -> Floor | None:
        """How often rounding alone flips an outcome; None: that is not known."""
        churn = self.numerical_churn
        return None if churn is None else Floor.of(round(self.problems * churn), self.problems)

    @property
    def likely_accuracy(self) -> float:
        """The target's accuracy as the mean under Jeffreys' prior: never 0 or 1, which a pilot cannot show."""
        return (self.problems * self.accuracy + 0.5) / (self.problems + 1)

    @property
    def cautious_churn(self) -> float:
        """Upper 80 % bound of the churn by Jeffreys' interval (Brown, Cai, DasGupta 2001)."""
        flipped = self.problems * max(self.churn, self.numerical_churn or 0.0)
        return float(beta.ppf(_CAUTION, flipped + 0.5, self.problems - flipped + 0.5))


def _worth(paired: Paired, claim: Claim) -> float:
    """See `Pilot`, by the outcomes that the claim's test compares.

    Where too few of them flipped to tell, a group counts as one problem.
    """
    if paired.groups is None:
        return 1.0
    tested = paired.against_perfect() if claim.acc == "absolute" else paired
    if np.count_nonzero(tested.unit_flips) < FEW:
        return len(tested.unit_sizes) / tested.problems
    return min(independent_worth(tested, claim.wanted or 1), 1.0)


@dataclass(frozen=True)
class Prospect:
    """What can be shown of a setting with a given true retention or accuracy."""

    truth: float  # retention, or accuracy
    chance: float | None  # that the certification part shows the goal; None: there is no goal
    needed: int | None  # problems for probability CHANCE; None: no number gives it, or there is no goal
    bound: float  # the highest that is shown with probability CHANCE


@dataclass(frozen=True)
class PlannedStep:
    """One step of a calibration, with its expected decodings and their time."""

    name: str
    decodings: int
    seconds_each: float
    worst_case: int = 0  # decodings in the worst case, where that is not the expected one
    once: float = 0.0  # seconds beside those of decodings

    @property
    def seconds(self) -> float:
        return self.decodings * self.seconds_each + self.once

    @property
    def worst_case_extra(self) -> float:
        """Seconds in the worst case, beyond the expected ones."""
        return max(self.worst_case - self.decodings, 0) * self.seconds_each


@dataclass(frozen=True)
class Paces:
    """Mean seconds of a decoding in the calibration's own batches, by all processes together."""

    target: float
    lossless: float
    fuzzy: float


@dataclass(frozen=True)
class GoesOn:
    """What a plan starts from where the attempt goes on from earlier ones.

    Attributes:
        attempts: Their numbers.
        settings: How many were frozen.
        seen: The outcomes of the first that did not pass.
    """

    attempts: tuple[int, ...]
    settings: int
    seen: Paired

    def begun(self, claim: Claim) -> Begun:
        """Returns what was seen, by the test of a claim."""
        return Begun(self.seen.problems, claim.p_value(self.seen))


@dataclass(frozen=True)
class Plan:
    """What can be shown of a claim, and the steps to it."""

    claim: Claim
    delta: float  # the significance level of the test
    certification: int  # problems of the certification part
    pilot: Pilot
    prospects: tuple[Prospect, ...]  # the best truth first
    least_truth: float | None  # the lowest that passes with probability CHANCE; None: even the best truth does not
    steps: tuple[PlannedStep, ...]
    memory: MemoryPlan | None = None  # None: not estimated
    devices: int = 1  # that the models of all processes are on
    on_cpu: bool = False  # the device is the CPU, which counts once however many workers share its cores
    compile: Rounds = "off"  # how rounds are called
    engine: EngineInfo | None = None  # what decodes; None: our own engine
    attempt: int | None = 1  # its number at this claim or on these problems; None: exploring makes none
    goes_on: GoesOn | None = None  # from an earlier attempt; None: from none

    @property
    def decoded(self) -> float:
        """The share of the certification part that a setting is expected to decode which passes with probability
        CHANCE."""
        return expected_share(self.claim, self.delta, self.goes_on)

    @property
    def seconds(self) -> float:
        return sum(step.seconds for step in self.steps)

    def _repr_html_(self) -> str:
        """Returns what notebooks show."""
        from fsd_calib.report.notebook import plan_html

        return plan_html(self)

    @property
    def device_seconds(self) -> float:
        """The time for which devices are taken, over all of them."""
        return self.devices * self.seconds

    @property
    def worst_case_extra(self) -> float:
        """Seconds in the worst case, beyond the expected ones."""
        return sum(step.worst_case_extra for step in self.steps)


def claim_of(goal: Goal, looks: Looks) -> Claim:
    """Returns the claim to show by these looks; of an exploration, the one that would be."""
    return Claim(goal.min_acc, goal.acc, goal.guarantee, looks, goal.confidence)


def expected_share(claim: Claim, delta: float, goes_on: GoesOn | None = None) -> float:
    """Returns the share of the certification part, or of what an earlier attempt left of it, that is expected to be
    decoded of a setting which passes with probability CHANCE.

    The betting test of a data set has no forecast: it is 1. So it is where no setting passes with that probability.
    """
    if claim.looks is None or claim.guarantee == "dataset":
        return 1.0
    begun = NOTHING if goes_on is None else goes_on.begun(claim)
    return claim.looks.outlook(claim.looks.power_for(CHANCE, delta, begun), delta, begun)[1]


def make_plan(
    claim: Claim, pilot: Pilot, certification: int, delta: float, steps: tuple[PlannedStep, ...] = (),
    goes_on: GoesOn | None = None,
) -> Plan:  # fmt: skip
    """Returns what `certification` problems can show at level `delta`, with one seed per problem."""
    odds = _odds(claim, pilot, delta, goes_on)
    best, middle = _truths(claim, pilot)
    prospects = tuple(odds.prospect(truth, certification) for truth in (best, middle))
    least = odds.least_truth(best, certification)
    return Plan(claim, delta, certification, pilot, prospects, least, steps, goes_on=goes_on)


def planned_steps(
    paces: Paces, *, few_rows: float = 1.0, tuning: int, lossless: int, searched: int, certification: int, likely: int,
    candidates: int, timed: int, timed_seconds: float, share: float = 1.0, counted: int = 0, graphs: float = 0.0,
    guarded: int = 0,
) -> tuple[PlannedStep, ...]:  # fmt: skip
    """Returns the steps of a calibration.

    Args:
        paces: seconds of decodings.
        few_rows: how many times as long a decoding of the search takes.
        tuning, certification: problems of each part.
        lossless: tuning problems that the lossless rule decodes.
        searched: decodings that the search is expected to take.
        likely, candidates: frozen candidates that are tested, as expected and at most.
        timed: decodings that are timed: problems x settings x repeats.
        share: of the certification part that is expected to be decoded, see `expected_share`.
        timed_seconds: mean time of a timed decoding, at --serve-batch.
        counted: problems on which the tokens per round of the `sd` that timing chose are counted.
        graphs: seconds of making the graphs of all shapes of rounds; 0: rounds are called directly.
        guarded: problems of other tasks that the target and the chosen setting decode.
    """
    baseline = (tuning * paces.target + lossless * paces.lossless) / (tuning + lossless)
    timing = (timed * timed_seconds + counted * paces.lossless) / max(timed + counted, 1)
    each = (paces.target + likely * paces.fuzzy) / (1 + likely)
    made = (PlannedStep("graphs", 0, 0.0, once=graphs),) if graphs else ()
    guards = (PlannedStep("guards", 2 * guarded, (paces.target + paces.fuzzy) / 2),) if guarded else ()
    return (
        *made,
        PlannedStep("baseline", tuning + lossless, baseline),
        PlannedStep("search", searched, few_rows * paces.fuzzy),
        PlannedStep(
            "certification", round((1 + likely) * share * certification), each, (1 + candidates) * certification
        ),
        PlannedStep("timing", timed + counted, timing),
        *guards,
    )


def check_enough(
    goal: Goal, certification: int, delta: float, accuracy: float = 1.0, seeds: int = 1, left_out: int = 0
) -> None:
    """Checks that the goal could be shown by `certification` independent problems if no outcome flipped.

    Args:
        delta: size of the test.
        accuracy: of the target; 1, where the fewest problems are needed, before anything is known.
        seeds: noise seeds per problem.
        left_out: further certification problems that cannot be used, since they were tuned on before.

    Raises:
        UsageError: there are too few problems; the message gives the number needed.
    """
    if goal.min_acc is None or goal.guarantee == "dataset" or _unlost(goal, certification, delta, accuracy, seeds):
        return
    needed = fewest(lambda problems: _unlost(goal, problems, delta, accuracy, seeds))
    if needed is None:  # the plan says so
        return
    what = "accuracy" if goal.acc == "absolute" else "retention"
    tuned = f" ({left_out:,} of {certification + left_out:,} were tuned on before)" if left_out else ""
    looks = Looks.evenly(needed, goal.tests)
    last = f" by the last of {len(looks.problems)} looks" if len(looks.problems) > 1 else ""
    once = _unlost(goal.changed(looks=1), certification, delta, accuracy, seeds)
    way_out = f", or one of {named('looks')}" if once else ""
    raise UsageError(
        f"there are {certification:,} problems to certify on{tuned}; to show {what} {goal.min_acc:g}{last} at level "
        f"{level(looks.level(needed, delta))} (which falls with every attempt at this claim) takes at least "
        f"{needed:,} even if nothing is lost: give more problems, or a lower {named('min_acc')} or "
        f"{named('confidence')}{way_out}"
    )


def _unlost(goal: Goal, problems: int, delta: float, accuracy: float, seeds: int) -> bool:
    """Whether so many problems pass the goal's own test where target and fuzzy rule solve the same ones."""
    claim = claim_of(goal, Looks.evenly(problems, goal.tests))
    assert claim.wanted is not None
    last, solved = claim.level(problems, delta), 1.0 if claim.acc == "absolute" else accuracy
    if claim.wanted >= 1 or not solved:  # only gains can show it
        needed = least_problems(accuracy=solved, wanted=claim.wanted, delta=last)
        return needed is not None and problems >= needed
    right = int(problems * solved)
    wrong = int(solved < 1)  # where the target fails a problem, gains are possible, and another test decides
    both = np.repeat([True, False], [right, wrong])[:, None].repeat(seeds, 1)
    return right > 0 and claim.p_value(Paired(both, both)) <= last


@dataclass(frozen=True)
class _Odds:
    """Power of the test by truth. Absolute accuracy is retention relative to a target that solves everything."""

    claim: Claim
    accuracy: float
    churn: float  # planned; `_population` changes it where the truth does not allow it
    delta: float
    worth: float = 1.0  # see `Pilot`
    goes_on: GoesOn | None = None

    def prospect(self, truth: float, problems: int) -> Prospect:
        share = self.claim.wanted
        bound, _ = _crossing(lambda goal: self.chance(problems, truth, goal) < CHANCE, 0.0, truth)
        if share is None:
            return Prospect(truth, None, None, bound)
        return Prospect(truth, self.chance(problems, truth, share), self.needed(truth, problems), bound)

    def chance(self, problems: int, truth: float, goal: float) -> float:
        """The probability that so many problems show `goal`."""
        if self.claim.guarantee == "dataset":  # every problem is decoded, so nothing is left to chance
            return float(truth >= goal and problems > 0)
        begun = NOTHING if self.goes_on is None else self.goes_on.begun(replace(self.claim, wanted=goal))
        independent = max(round(self.worth * (problems - begun.problems)), 1)
        once = power(problems=independent, wanted=goal, delta=self.delta, **self._population(truth))
        return self.claim.chance(once, self.delta, begun)

    def needed(self, truth: float, problems: int) -> int | None:
        wanted, population = self.claim.wanted, self._population(truth)
        assert wanted is not None
        if self.claim.guarantee == "dataset":
            return problems if truth >= wanted else None
        if self.goes_on is not None:
            decoded = self.goes_on.seen.problems
            more = fewest(lambda more: self.chance(decoded + more, truth, wanted) >= CHANCE) if truth > wanted else None
            return None if more is None else decoded + more
        independent = problems_needed(
            wanted=wanted, delta=self.delta, chance=CHANCE, looks=self.claim.looks, **population
        )
        return None if independent is None else math.ceil(independent / self.worth)

    def least_truth(self, best: float, problems: int) -> float | None:
        share = self.claim.wanted
        if share is None or self.chance(problems, best, share) < CHANCE:
            return None
        return _crossing(lambda truth: self.chance(problems, truth, share) >= CHANCE, min(share, best), best)[1]

    def _population(self, truth: float) -> dict[str, float]:
        """Arguments of `power`: the planned churn, clipped to what the truth requires and allows."""
        gap = (1 - truth) * self.accuracy  # losses less gains
        least, most = abs(gap), min(2 * (1 - self.accuracy) + gap, 2 * self.accuracy - gap)
        return {"accuracy": self.accuracy, "churn": max(least, min(self.churn, most)), "retention": truth}


def _odds(claim: Claim, pilot: Pilot, delta: float, goes_on: GoesOn | None) -> _Odds:
    accuracy, churn = (1.0, 0.0) if claim.acc == "absolute" else (pilot.likely_accuracy, pilot.cautious_churn)
    return _Odds(claim, accuracy, churn, delta, pilot.worth, goes_on)


def _truths(claim: Claim, pilot: Pilot) -> tuple[float, float]:
    """The best truth and a middle one: nothing lost, and half of the losses that the goal allows.

    For a goal that losing nothing does not meet: a little above the goal, or the highest there can be.
    """
    unlost, most = (pilot.likely_accuracy, 1.0) if claim.acc == "absolute" else (1.0, 1 / pilot.likely_accuracy)
    if claim.wanted is None:
        return unlost, 0.95 * unlost
    best = unlost if claim.wanted < unlost else min(claim.wanted + _ABOVE, most)
    return best, (best + (claim.wanted if claim.wanted < best else unlost)) / 2


def _crossing(holds: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """Returns the ends of the interval, to PRECISION, in which a monotone condition begins to hold, by bisection."""
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return low, high
