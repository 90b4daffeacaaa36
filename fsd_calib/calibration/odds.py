"""What can be shown of a setting with a given true retention or accuracy, and by how many problems: power by truth."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from fsd_calib.calibration.pilot import Pilot
from fsd_calib.certification.claim import Claim
from fsd_calib.certification.looks import NOTHING, Begun
from fsd_calib.certification.outcomes import Paired
from fsd_calib.certification.power import fewest, least_problems, power, problems_needed

CHANCE = 0.8  # power of the test that is planned for: the probability of certifying what is true
_ABOVE = 0.02  # how far above a goal that losing nothing does not meet the best truth is assumed
_BISECTIONS = 20  # of an interval at most 1 long: to PRECISION


@dataclass(frozen=True)
class Prospect:
    """What can be shown of a setting with a given true retention or accuracy."""

    truth: float  # retention, or accuracy
    chance: float | None  # that the certification part shows the goal; None: there is no goal
    between: tuple[float, float] | None  # the least and the greatest chance by the pilot's interval of the churn
    needed: int | None  # problems for probability CHANCE; None: no number gives it, or there is no goal
    bound: float  # the highest that is shown with probability CHANCE


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

    @property
    def facts(self) -> dict[str, Any]:
        """What it says, as JSON can hold it."""
        return {"attempts": [*self.attempts], "settings": self.settings, "seen": asdict(self.seen.outcomes)}

    def begun(self, claim: Claim) -> Begun:
        """Returns what was seen, by the test of a claim."""
        return Begun(self.seen.problems, claim.p_value(self.seen))


@dataclass(frozen=True)
class Odds:
    """Power of the test by truth. Absolute accuracy is retention relative to a target that solves everything."""

    claim: Claim
    accuracy: float
    churn: float  # planned; `_population` changes it where the truth does not allow it
    churn_between: tuple[float, float]  # the ends of its interval
    delta: float
    worth: float = 1.0  # independent problems with one seed that one counts as
    goes_on: GoesOn | None = None

    def prospect(self, truth: float, problems: int) -> Prospect:
        share, bound = self.claim.wanted, self.bound(truth, problems)
        if share is None:
            return Prospect(truth, None, None, None, bound)
        chance = self.chance(problems, truth, share)
        chances = [chance, *(odds.chance(problems, truth, share) for odds in self.ends)]
        return Prospect(truth, chance, (min(chances), max(chances)), self.needed(truth, problems), bound)

    @property
    def ends(self) -> tuple[Odds, Odds]:
        """The odds with the churn at either end of its interval, the lower one first."""
        low, high = self.churn_between
        return replace(self, churn=low), replace(self, churn=high)

    def bound(self, truth: float, problems: int) -> float:
        """The highest goal that so many problems show with probability CHANCE."""
        return _crossing(lambda goal: self.chance(problems, truth, goal) < CHANCE, 0.0, truth)[0]

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


def odds_of(claim: Claim, pilot: Pilot, delta: float, seeds: int = 1, goes_on: GoesOn | None = None) -> Odds:
    """Returns the odds of problems with so many seeds each, as a pilot shows them."""
    worth = pilot.worth * (1.0 if pilot.noise is None else pilot.noise.gain(seeds))
    if claim.acc == "absolute":
        return Odds(claim, 1.0, 0.0, (0.0, 0.0), delta, worth, goes_on)
    return Odds(claim, pilot.likely_accuracy, pilot.cautious_churn, pilot.churn_between, delta, worth, goes_on)


def truths_of(claim: Claim, pilot: Pilot) -> tuple[float, float]:
    """Returns the best truth and a middle one: nothing lost, and half of the losses that the goal allows.

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


def unlost(claim: Claim, delta: float, accuracy: float, seeds: int) -> bool:
    """Returns whether as many problems as the claim has pass its own test where nothing is lost or gained.

    Args:
        accuracy: Of the target.
        seeds: Of each problem.
    """
    wanted, problems = claim.wanted, claim.problems
    assert wanted is not None
    assert problems is not None
    last, solved = claim.level(problems, delta), 1.0 if claim.acc == "absolute" else accuracy
    if wanted >= 1 or not solved:  # only gains can show it
        needed = least_problems(accuracy=solved, wanted=wanted, delta=last)
        return needed is not None and problems >= needed
    right = int(problems * solved)
    wrong = int(solved < 1)  # where the target fails a problem, gains are possible, and another test decides
    both = np.repeat([True, False], [right, wrong])[:, None].repeat(seeds, 1)
    return right > 0 and claim.p_value(Paired(both, both)) <= last
