"""Plan of a calibration: what it can be expected to show and how long it takes, from a pilot on the first problems.

A plan is a forecast; the test itself uses none of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fsd_calib.calibration.design import Design, design_of
from fsd_calib.calibration.memory import MemoryPlan
from fsd_calib.calibration.odds import CHANCE, GoesOn, Prospect, odds_of, truths_of, unlost
from fsd_calib.calibration.pilot import Pilot
from fsd_calib.calibration.worth import Ceiling, Expected
from fsd_calib.certification.claim import Claim
from fsd_calib.certification.looks import NOTHING, Looks
from fsd_calib.certification.power import fewest
from fsd_calib.options.goal import Goal
from fsd_common.argument_checks import named
from fsd_common.errors import UsageError
from fsd_common.formatting import level
from fsd_common.progress.base import Stage
from fsd_decoding.profile.fields import Rounds
from fsd_decoding.profile.parts import EngineInfo


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
class FirstEstimate:
    """What some rounds of the first problems told, before the plan: times in seconds, of all steps together.

    Attributes:
        low, high: the ends of an interval: about 80 % by the texts seen; on a busy machine also, should its load end,
            or grow by the factor that it already makes.
        preparation: until the plan.
        longest: the longest step, which takes `share` of all.
        tokens_per_round: of lossless rounds at `draft_length`.
        took: to find this.
    """

    low: float
    seconds: float
    high: float
    preparation: float
    longest: str
    share: float
    tokens_per_round: float
    draft_length: int
    took: float


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
    design: Design | None = None  # the cheapest for the goal; None: there is nothing to choose
    design_steps: tuple[PlannedStep, ...] = ()  # of a run that takes it
    takes_design: bool | None = None  # whether a run takes it; None: it cannot be asked to
    tokens: float = 0.0  # of a decoding, on average
    ceiling: Ceiling | None = None  # None: not known
    expected: Expected | None = None  # None: nothing is searched, or no accuracy is to be kept
    min_gain: float | None = None  # a run ends here where the ceiling is below it; None: it goes on anyway
    price_per_hour: float | None = None  # of a device; None: not known
    first: FirstEstimate | None = None  # None: none was made

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

    @property
    def price(self) -> float | None:
        """Of the devices' time; None: that of an hour is not known."""
        return None if self.price_per_hour is None else self.price_per_hour * self.device_seconds / 3600

    @property
    def worth_it(self) -> bool:
        """Whether a run goes on from here."""
        if self.min_gain in (None, 1.0) or self.ceiling is None:  # 1 goes on whatever there is to gain
            return True
        return self.ceiling.gain >= self.min_gain


class NotWorthItError(UsageError):
    """No rule can gain as much as is asked for, so a run ends with its plan."""


def check_worth(plan: Plan) -> None:
    """Raises NotWorthItError where not even accepting everything gains as much as a setting has to."""
    if plan.worth_it:
        return
    ceiling, option = plan.ceiling, named("min_gain")
    assert ceiling is not None
    raise NotWorthItError(
        f"a calibration is not worth it: accepting every drafted token makes {ceiling.gain:.2f} times the tokens/s of "
        f"{ceiling.lossless}, and {option} is {plan.min_gain:g}; decode by {ceiling.lossless}, which is lossless "
        f"(about {ceiling.lossless_speed:.3g} tokens/s a stream), or give {option} 1 to go on"
    )


GRAPHS, SEARCH, TIMING = "graphs", "search", "timing"
"""Names of steps that are more than decodings."""


def stages_of(steps: Sequence[PlannedStep]) -> list[Stage]:
    """Returns the stages of these steps, in their order.

    Graphs are made whenever a shape of rounds comes up, mostly while searching. Timing is told by the clock, since its
    decodings are no results that are counted.
    """
    graphs = sum(step.seconds for step in steps if step.name == GRAPHS)
    stages = [
        Stage(step.name, step.seconds, 0 if step.name == TIMING else step.decodings)
        for step in steps
        if step.name != GRAPHS
    ]
    return [replace(one, seconds=one.seconds + graphs) if one.name == SEARCH else one for one in stages]


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
    goes_on: GoesOn | None = None, seeds: int = 1,
) -> Plan:  # fmt: skip
    """Returns what `certification` problems, with so many seeds each, can show at level `delta`."""
    odds = odds_of(claim, pilot, delta, seeds, goes_on)
    best, middle = truths_of(claim, pilot)
    prospects = tuple(odds.prospect(truth, certification) for truth in (best, middle))
    design = None
    if claim.wanted is not None and claim.guarantee == "population" and goes_on is None:
        design = design_of(claim, pilot, delta, certification, (middle, best))
    least = odds.least_truth(best, certification)
    return Plan(claim, delta, certification, pilot, prospects, least, steps, goes_on=goes_on, design=design)


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
        counted: problems on which the tokens per round of the lossless rule that timing chose are counted.
        graphs: seconds of making the graphs of all shapes of rounds; 0: rounds are called directly.
        guarded: problems of other tasks that the target and the chosen setting decode.
    """
    baseline = (tuning * paces.target + lossless * paces.lossless) / (tuning + lossless)
    timing = (timed * timed_seconds + counted * paces.lossless) / max(timed + counted, 1)
    each = (paces.target + likely * paces.fuzzy) / (1 + likely)
    made = (PlannedStep(GRAPHS, 0, 0.0, once=graphs),) if graphs else ()
    guards = (PlannedStep("guards", 2 * guarded, (paces.target + paces.fuzzy) / 2),) if guarded else ()
    return (
        *made,
        PlannedStep("baseline", tuning + lossless, baseline),
        PlannedStep(SEARCH, searched, few_rows * paces.fuzzy),
        PlannedStep(
            "certification", round((1 + likely) * share * certification), each, (1 + candidates) * certification
        ),
        PlannedStep(TIMING, timed + counted, timing),
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
    tuned = ""
    if left_out:
        tuned = (
            f" ({left_out:,} of {certification + left_out:,} were tuned on before: a calibration, a sweep of all "
            "problems or another command decoded them under a threshold, or a predictor or head was trained on them)"
        )
    looks = Looks.evenly(needed, goal.tests)
    solved = "" if accuracy == 1 else f", as the target solves {accuracy:.0%}"
    last = f" by the last of {len(looks.problems)} looks" if len(looks.problems) > 1 else ""
    once = _unlost(goal.changed(looks=1), certification, delta, accuracy, seeds)
    way_out = f", or one of {named('looks')}" if once else ""
    raise UsageError(
        f"there are {certification:,} problems to certify on{tuned}; to show {what} {goal.min_acc:g}{last} at level "
        f"{level(looks.level(needed, delta))} (which falls with every attempt at this claim) takes at least "
        f"{needed:,} even if nothing is lost{solved}: give more problems, or a lower {named('min_acc')} or "
        f"{named('confidence')}{way_out}"
    )


def _unlost(goal: Goal, problems: int, delta: float, accuracy: float, seeds: int) -> bool:
    return problems > 0 and unlost(claim_of(goal, Looks.evenly(problems, goal.tests)), delta, accuracy, seeds)
