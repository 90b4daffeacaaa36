"""Plans: probabilities and numbers compared with simulated certifications, caution, refusals, and printed text."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom

from fsd_calib.calibration.odds import Prospect
from fsd_calib.calibration.pilot import Pilot
from fsd_calib.calibration.plan import Paces, Plan, check_enough, make_plan, planned_steps
from fsd_calib.certification.claim import Claim
from fsd_calib.certification.looks import Looks
from fsd_calib.certification.outcomes import Paired
from fsd_calib.certification.power import cells, power
from fsd_calib.certification.score_test import p_values
from fsd_calib.measuring.measurement import Decoding, Measurement
from fsd_calib.options.goal import Goal
from fsd_calib.report.plan import attempt_line, outlook, print_plan
from fsd_common.errors import UsageError
from fsd_common.formatting import duration
from fsd_decoding.profile.certificate import attempt_level
from fsd_decoding.profile.setting import Setting
from support.calibration.reports import paper, text_of

DELTA = 0.05 * 6 / np.pi**2  # of a first attempt at 95 %
HANDFUL = Pilot(64, accuracy=60 / 64, numerical_churn=0.0, churn=1 / 64, retention=59 / 60)
RUNS = 20_000


def share_certified(plan: Plan, prospect: Prospect, wanted: float, problems: int, churn: float | None = None) -> float:
    """The share of simulated certifications on `problems` problems that pass, with the truth of the prospect."""
    accuracy, churn = plan.pilot.likely_accuracy, plan.pilot.cautious_churn if churn is None else churn
    population: tuple[float, ...] = (prospect.truth, 1 - prospect.truth, 0.0, 0.0)  # beside a perfect target
    if plan.claim.acc == "retention":
        population = cells(accuracy, max(churn, abs(1 - prospect.truth) * accuracy), prospect.truth)
    n11, n10, n01, n00 = np.random.default_rng(problems).multinomial(problems, population, size=RUNS).T
    return float((p_values(n11, n10, n01, n00, wanted) <= DELTA).mean())


@pytest.mark.thinned(every=7)
@pytest.mark.parametrize("problems", [300, 3000])
@pytest.mark.parametrize(
    "claim", [Claim(0.98), Claim(0.9), Claim(1.0), Claim(0.9, "absolute"), Claim(0.95, "absolute")]
)
def test_a_plan_agrees_with_simulated_certifications(claim: Claim, problems: int) -> None:
    """Shares of 20,000 runs: 4 standard errors are at most .014; .01 is what `power` may be off. Of 60 numbers
    a false alarm is below .006, were the seeds not fixed. The bound is at a step; `needed` on a saw's tooth."""
    plan = make_plan(claim, HANDFUL, problems, DELTA)
    assert claim.wanted is not None
    for prospect in plan.prospects:
        assert prospect.chance == pytest.approx(share_certified(plan, prospect, claim.wanted, problems), abs=0.024)
        assert share_certified(plan, prospect, prospect.bound - 1e-5, problems) >= 0.8 - 0.024
        assert share_certified(plan, prospect, prospect.bound + 0.004, problems) <= 0.8 + 0.024
        assert prospect.needed is not None
        assert share_certified(plan, prospect, claim.wanted, prospect.needed) == pytest.approx(0.8, abs=0.06)


def test_the_interval_of_a_chance_is_what_the_pilot_leaves_open_of_churn() -> None:
    """Shares of 20,000 runs, as above, at both ends of the churn. A larger pilot leaves less open."""
    plan, more = (make_plan(Claim(0.98), replace(HANDFUL, problems=64 * times), 1319, DELTA) for times in (1, 25))
    few, many = plan.pilot.churn_between
    for prospect, surer in zip(plan.prospects, more.prospects, strict=True):
        assert prospect.between is not None
        assert surer.between is not None
        low, high = prospect.between
        assert low == pytest.approx(share_certified(plan, prospect, 0.98, 1319, many), abs=0.024)
        assert high == pytest.approx(share_certified(plan, prospect, 0.98, 1319, few), abs=0.024)
        assert high - low > 2 * (surer.between[1] - surer.between[0])


def test_a_plan_says_which_attempt_it_spends_at_which_level() -> None:
    plan = replace(make_plan(Claim(0.98), HANDFUL, 1319, attempt_level(0.95, 2)), attempt=2)
    said = (
        "attempt 2 at this claim or on these problems, tested at level 0.00304, and spends it: attempt 3 is tested at"
    )
    assert f"A run is {said} level 0.00076. --explore spends none." in attempt_line(plan)
    print_plan(plan, console := paper(80))
    assert said in " ".join(text_of(console).split())
    assert "no attempt is spent" in attempt_line(replace(plan, attempt=None))


def test_the_least_truth_passes_four_times_in_five() -> None:
    plan = make_plan(Claim(0.98), HANDFUL, 1319, DELTA)
    assert plan.least_truth is not None
    assert 0.99 < plan.least_truth < 1.0
    prospect = Prospect(plan.least_truth, None, None, None, 0.0)
    assert share_certified(plan, prospect, 0.98, 1319) == pytest.approx(0.8, abs=0.024)
    assert make_plan(Claim(0.98), HANDFUL, 300, DELTA).least_truth is None


@pytest.mark.parametrize("churn", [0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2])
def test_the_planned_churn_is_cautious_about_four_times_in_five(churn: float) -> None:
    """Summed over all handfuls of 64, so without chance; counts make it uneven."""
    bounds = [Pilot(64, 0.9, 0.0, flipped / 64, 1.0).cautious_churn for flipped in range(65)]
    cautious = binom.pmf(np.arange(65), 64, churn)[np.array(bounds) >= churn].sum()
    assert cautious >= 0.7


@pytest.mark.slow
def test_problems_that_are_said_to_be_needed_mostly_are_enough() -> None:
    """In a population with 4 % churn and retention 1, summed over handfuls of 64, so without chance."""
    enough = 0.0
    for flipped in range(9):
        needed = make_plan(Claim(0.95), Pilot(64, 0.9, 0.0, flipped / 64, 1.0), 0, DELTA).prospects[0].needed
        assert needed is not None
        there = power(problems=needed, accuracy=0.9, churn=0.04, retention=1.0, wanted=0.95, delta=DELTA)
        enough += float(binom.pmf(flipped, 64, 0.04)) * (there >= 0.76)
    assert enough >= 0.75


CLAIMS = [
    *(Claim(share) for share in (None, 0.5, 0.98, 1.2)),
    *(Claim(share, "absolute") for share in (None, 0.5, 0.98)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("accuracy", "churn"), [(0.0, 0.0), (0.0, 1.0), (0.5, 0.5), (1.0, 0.0), (1.0, 1.0)])
@pytest.mark.parametrize("claim", CLAIMS, ids=str)
def test_every_handful_gives_a_plan_that_can_be_printed(accuracy: float, churn: float, claim: Claim) -> None:
    plan = make_plan(claim, Pilot(8, accuracy, 0.0, churn, None), 50, DELTA)
    assert all(0 <= p.bound <= p.truth and (p.chance is None) == (claim.wanted is None) for p in plan.prospects)
    assert printed(plan)


def test_a_handful_is_counted_on_the_same_problems() -> None:
    def measured(*correct: int) -> Measurement:
        decodings = [(Decoding(bool(c), "", 1, 1, 0, 0),) for c in correct]
        return Measurement(Setting("fsd", "js", 5), "tuning", decodings)

    target = measured(1, 1, 1, 0)
    assert Pilot.of(target, measured(1, 1, 1, 1), measured(0, 1, 1, 1), Claim(0.98)) == Pilot(4, 0.75, 0.25, 0.5, 1.0)
    assert Pilot.of(measured(0, 0), measured(0, 0), measured(0, 1), Claim(0.98)) == Pilot(2, 0.0, 0.0, 0.5, None)


def test_too_few_problems_are_refused_with_the_number() -> None:
    once, least = Goal(min_acc=0.98, looks=1), next(n for n in range(1000) if 0.98**n <= DELTA)
    with pytest.raises(UsageError, match=f"there are {least - 1} problems .* takes at least {least} even") as refused:
        check_enough(once, least - 1, DELTA)
    assert "\n" not in str(refused.value)
    assert "every attempt at this claim" in str(refused.value)
    assert "other problems" not in str(refused.value)  # which are no way out of what is spent at a claim
    check_enough(once, least, DELTA)
    with pytest.raises(UsageError, match=r"takes at least 3\d\d even"):
        check_enough(once, least, DELTA, accuracy=0.5)
    absolute, least = Goal(min_acc=0.9, acc="absolute", looks=1), next(n for n in range(1000) if 0.9**n <= DELTA)
    with pytest.raises(UsageError, match=rf"to show accuracy 0.9 .* takes at least {least} "):
        check_enough(absolute, least - 1, DELTA, accuracy=0.5)
    check_enough(absolute, least, DELTA, accuracy=0.5)


def test_looks_need_a_few_more_problems_and_say_so() -> None:
    goal = Goal(min_acc=0.98)
    with pytest.raises(UsageError, match=r"by the last of 10 looks at level .* or one of looks$") as refused:
        check_enough(goal, 175, DELTA)
    least = int(str(refused.value).split("takes at least ")[1].split()[0])
    check_enough(goal, least, DELTA)
    with pytest.raises(UsageError, match=rf"takes at least {least} "):
        check_enough(goal, least - 1, DELTA)
    with pytest.raises(UsageError, match=rf"takes at least {least} .* or confidence$"):
        check_enough(goal, 12, DELTA)


@pytest.mark.parametrize("seeds", [1, 3])
def test_what_is_not_refused_can_pass(seeds: int) -> None:
    """At a level that the binomial test of 200 losses that were none just meets, and the exact test just does not."""
    delta = 0.98**200 * 1.001
    with pytest.raises(UsageError, match="takes at least") as refused:
        check_enough(Goal(min_acc=0.98, looks=1), 1, delta, accuracy=0.8, seeds=seeds)
    least = int(str(refused.value).split("takes at least ")[1].split()[0])
    right = np.arange(least)[:, None].repeat(seeds, 1) < round(0.8 * least)
    assert Claim(0.98).p_value(Paired(right, right)) <= delta
    assert seeds > 1 or p_values(200, 0, 0, 50, 0.98) > delta


def test_nothing_is_refused_that_needs_no_number() -> None:
    check_enough(Goal(pareto=True), 1, DELTA)
    check_enough(Goal(min_acc=0.98, guarantee="dataset"), 1, DELTA)


def test_problems_in_groups_count_as_fewer() -> None:
    """Of 20 groups of 4 that flip as one, each problem is worth a quarter; where few flipped, it is taken to be."""
    grades = np.repeat(np.random.default_rng(1).random(20) < 0.7, 4)

    def measured(correct: NDArray[np.bool_]) -> Measurement:
        decodings = [(Decoding(bool(c), "", 1, 1, 0, 0),) for c in correct]
        return Measurement(Setting("fsd", "js", 5), "tuning", decodings, np.repeat(np.arange(20), 4))

    perfect = np.ones(80, bool)
    few = np.arange(80) >= 4
    for fuzzy in (grades, few):
        pilot = Pilot.of(measured(perfect), None, measured(fuzzy), Claim(0.98))
        assert pilot.worth == pytest.approx(0.25)
    mixed = measured(np.random.default_rng(1).random(80) < 0.7)  # nothing flips, and failures are no matter of groups
    assert Pilot.of(mixed, None, mixed, Claim(0.98)).worth == pytest.approx(0.25)
    assert Pilot.of(mixed, None, mixed, Claim(0.6, "absolute")).worth > 0.5
    grouped, alone = (make_plan(Claim(0.98), replace(HANDFUL, worth=worth), 4000, DELTA) for worth in (0.25, 1.0))
    quarter = make_plan(Claim(0.98), HANDFUL, 1000, DELTA)
    assert [p.chance for p in grouped.prospects] == [p.chance for p in quarter.prospects]
    for one, other in zip(grouped.prospects, alone.prospects, strict=True):
        assert one.needed is not None
        assert other.needed is not None
        assert one.needed == 4 * other.needed
    assert "4,000 of them show about as much as 1,000" in printed(grouped)


def test_of_a_dataset_nothing_is_left_to_chance() -> None:
    plan = make_plan(Claim(0.98, guarantee="dataset", looks=Looks((100,))), HANDFUL, 100, DELTA)
    assert [(p.chance, p.needed) for p in plan.prospects] == [(1.0, 100), (1.0, 100)]
    assert "covers these 100 problems only" in printed(plan)
    assert "significance level" not in printed(plan)


def test_steps_add_up() -> None:
    steps = planned_steps(
        Paces(target=0.3, lossless=0.2, fuzzy=0.1), tuning=100, lossless=50, searched=300, certification=50, likely=1,
        candidates=4, timed=60, timed_seconds=0.5, few_rows=2.0,
    )  # fmt: skip
    plan = make_plan(Claim(None), HANDFUL, 50, DELTA, steps)
    assert [(step.decodings, round(step.seconds, 9)) for step in steps] == [(150, 40), (300, 60), (100, 20), (60, 30)]
    assert plan.seconds == pytest.approx(150)
    assert plan.worst_case_extra == pytest.approx(150 * 0.2)
    text = printed(plan)
    assert row(text, "search") == ["300", "60", "s"]
    assert row(text, "total") == ["610", "2", "min"]
    assert "about 0.042 in all, at most 0.01 more if all frozen settings are tested." in " ".join(text.split())


def test_what_is_decoded_beside_the_timing_is_planned_with_it() -> None:
    work: dict[str, int] = {"tuning": 100, "lossless": 50, "searched": 300, "certification": 50, "likely": 1}
    planned = partial(planned_steps, Paces(0.3, 0.2, 0.1), **work, candidates=4, timed=60, timed_seconds=0.5)
    (timing,) = (step for step in planned(counted=90) if step.name == "timing")
    assert timing.decodings == 150
    assert timing.seconds == pytest.approx(30 + 18)


def test_making_graphs_is_a_step_of_its_own() -> None:
    work: dict[str, int] = {"tuning": 100, "lossless": 50, "searched": 300, "certification": 50, "likely": 1}
    planned = partial(planned_steps, Paces(0.3, 0.2, 0.1), **work, candidates=4, timed=60, timed_seconds=0.5)
    plain, graphs = (make_plan(Claim(None), HANDFUL, 50, DELTA, planned(graphs=taken)) for taken in (0.0, 600.0))
    assert graphs.steps[1:] == plain.steps
    assert graphs.seconds == pytest.approx(plain.seconds + 600)
    assert graphs.worst_case_extra == plain.worst_case_extra
    assert row(printed(graphs), "graphs") == ["0", "10", "min"]


def test_durations_are_as_precise_as_they_are_known() -> None:
    assert [duration(s) for s in (0.2, 99, 100, 5900, 6000, 36000)] == [
        "0 s",
        "99 s",
        "2 min",
        "98 min",
        "1.7 h",
        "10.0 h",
    ]


def printed(plan: Plan, width: int = 80) -> str:
    print_plan(plan, console := paper(width))
    text = text_of(console)
    assert max(map(len, text.splitlines())) <= width
    return text


def row(text: str, label: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.strip().startswith(label)]
    return line.strip().removeprefix(label).split()


def test_the_table_holds_the_plan() -> None:
    plan = make_plan(Claim(0.98), HANDFUL, 1319, DELTA)
    best, middle = plan.prospects
    for prospect, label in ((best, "100.0%"), (middle, "99.0%")):
        chance, low, _, high, needed, _, bound = row(printed(plan), label)
        assert chance == f"{100 * (prospect.chance or 0):.0f}%"
        assert f"{low} to {high}" == "({:.0%} to {:.0%})".format(*prospect.between or ())
        assert needed == f"{prospect.needed:,}"
        assert 0 <= prospect.bound - float(bound.removesuffix("%")) / 100 < 0.001  # never rounded up
    assert "target solved 93.8%" in " ".join(printed(plan).split())
    assert f"The plan assumes that {HANDFUL.cautious_churn:.1%} flip" in " ".join(printed(plan).split())


@pytest.mark.parametrize(
    ("claim", "problems", "said"),
    [
        (Claim(0.98), 1319, "The 1,319 certification problems are enough"),
        (Claim(0.98), 300, "The 300 certification problems are probably too few"),
        (Claim(1.0), 3000, "the setting must beat the target"),
        (Claim(1.2), 1319, "No number of problems can show this"),
        (Claim(0.95, "absolute"), 1319, "The target itself solved only 93.8%"),
        (Claim(None), 1319, "No accuracy was requested"),
        (Claim(0.98, looks=Looks.evenly(1319, 8)), 1319, "of them on average, by 8 looks"),
    ],
)
def test_what_follows_is_said(claim: Claim, problems: int, said: str) -> None:
    assert said in outlook(make_plan(claim, HANDFUL, problems, DELTA))


def test_the_share_to_request_instead_can_be_shown() -> None:
    plan = make_plan(Claim(0.98), HANDFUL, 300, DELTA)
    share = float(outlook(plan).split("request ")[1].split("%")[0]) / 100
    chance = make_plan(Claim(share), HANDFUL, 300, DELTA).prospects[0].chance
    assert chance is not None
    assert chance >= 0.8
