"""The design of a certificate: how many problems are decoded, and with how many seeds each.

A new problem shows more than another seed of an old one, so the cheapest design has as few seeds as the problems allow.
Where there are too few problems, seeds help as far as outcomes vary within a problem: their mean has the variance
between problems, and a seed's share of the one within (two-stage sampling; Cochran, Sampling Techniques, 1977, chapter
10).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from fsd_calib.calibration.odds import CHANCE, Odds, odds_of, unlost
from fsd_calib.calibration.pilot import Pilot
from fsd_calib.certification.claim import Claim
from fsd_calib.certification.looks import Looks
from fsd_calib.certification.power import PRECISION, fewest
from fsd_calib.options.goal import Goal
from fsd_calib.options.run_config import RunConfig
from fsd_common.argument_checks import named
from fsd_common.errors import UsageError
from fsd_common.formatting import bound, exact

MOST_SEEDS = 16  # further ones hardly average anything, and cost as much as any other


@dataclass(frozen=True)
class Design:
    """What is decoded of each setting, and what that shows with the probability that a plan is made for.

    Attributes:
        problems: Of the certification part.
        seeds: Of each problem.
        truth: The true retention, or accuracy, of a setting that is shown to meet the goal; None: not even the best can
            be.
        bound: What is shown of that setting.
    """

    problems: int
    seeds: int
    truth: float | None
    bound: float


def design_of(claim: Claim, pilot: Pilot, delta: float, problems: int, truths: Sequence[float]) -> Design:
    """Returns the cheapest design that shows the goal of the first of these truths of which any does.

    Where none does, it is what shows the most: all problems, with the most seeds.

    Args:
        problems: That there are to certify on.
        truths: Those of settings, the ones to be shown rather than others first; the last is the best.
    """
    most, goal = 1 if pilot.noise is None else MOST_SEEDS, _Goal(claim, pilot, delta)
    for truth in truths:
        shown_by = partial(goal.is_shown, truth)
        if shown_by(1, problems) or shown_by(most, problems):
            seeds = fewest(lambda number: shown_by(number, problems)) or most  # noqa: B023
            needed = min(fewest(partial(shown_by, seeds)) or problems, problems)
            return Design(needed, seeds, truth, goal.odds(seeds).bound(truth, needed))
    return Design(problems, most, None, goal.odds(most).bound(truths[-1], problems))


@dataclass(frozen=True)
class _Goal:
    """A claim that is to be shown, by what a pilot showed."""

    claim: Claim
    pilot: Pilot
    delta: float

    def odds(self, seeds: int) -> Odds:
        return odds_of(self.claim, self.pilot, self.delta, seeds)

    def is_shown(self, truth: float, seeds: int, problems: int) -> bool:
        """Whether it is with probability CHANCE; with several seeds another test decides where little flips, which
        takes more problems."""
        wanted, looks = self.claim.wanted, self.claim.looks
        assert wanted is not None
        if self.odds(seeds).chance(problems, truth, wanted) < CHANCE:
            return False
        number = 1 if looks is None else len(looks.problems)
        claim = replace(self.claim, looks=Looks.evenly(problems, number))
        return seeds == 1 or unlost(claim, self.delta, self.pilot.likely_accuracy, seeds)


def check_design(goal: Goal, config: RunConfig, in_turn: bool) -> None:
    """UsageError: a design is to be chosen, and there is nothing to choose it for.

    Args:
        in_turn: Whether several engines certify in turn.
    """
    if config.design == "all":
        return
    design, what = f"{named('design')} {config.design!r}", ""
    if goal.explore or goal.min_acc is None:
        given = named("explore") if goal.explore else named("pareto" if goal.pareto else "min_speed")
        what = f"{given} tests nothing"
    elif goal.guarantee == "dataset":
        what = f"{named('guarantee')} 'dataset' is about all of the problems"
    elif in_turn:
        what = "several engines certify on the same problems"
    elif config.seeds != 1:
        what = f"{named('seeds')} {config.seeds} says how many seeds"
    if what:
        raise UsageError(f"{design} is the cheapest way to show a goal, and {what}; leave {named('design')} out")


def check_enough_by(design: Design, claim: Claim) -> None:
    """UsageError: the design shows the most, and that is not enough for the goal."""
    if design.truth is not None:
        return
    seeds = f"with {design.seeds} seeds each " if design.seeds > 1 else ""
    what = "accuracy" if claim.acc == "absolute" else "retention"
    raise UsageError(
        f"no design of these {design.problems:,} problems shows {what} {claim.wanted:g} with probability "
        f"{exact(CHANCE)}: {seeds}they show {bound(design.bound, PRECISION)} at most; give more problems, or a lower "
        f"{named('min_acc')}, or {named('design')} 'all' to try all the same"
    )
