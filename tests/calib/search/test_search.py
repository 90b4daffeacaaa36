"""Searching a simulated world: what is found, what it costs, and that a stopped search goes on as if it had not."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsd_calib.measuring.configuration import Configuration
from fsd_calib.progress import Silent
from fsd_calib.search.forecast import first_as_fast, speed_at
from fsd_calib.search.max_accuracy import MaxAccuracy
from fsd_calib.search.objective import Objective
from fsd_calib.search.pareto import ParetoFront, nondominated
from fsd_calib.search.search import Searched, freeze, search
from fsd_calib.search.space import Space, kin, logit
from fsd_calib.search.trial import race
from fsd_decoding.adaptive import Schedule
from support.messages import usage_error
from support.simulated_worlds import HIGHEST, LOWEST, Formula, World, keep_accuracy

ONE = Space(("fsd-coupled",), ("js",), (6,))
SEVERAL = Space(("fsd-coupled",), ("js", "kl_qp", "tv"), (2, 4, 6, 8, 10))
SHIFTS = {"kl_qp": -0.8, "tv": 0.6}


def run(
    world: World, space: Space = ONE, objective: Objective | None = None, trials: int = 60, drift: float = 0.0
) -> Searched:
    asked = objective or keep_accuracy(world)
    return search(
        world.evaluator(), world.target(), Formula(drift=drift), space, asked, None, "study", trials, Silent()
    )


def expected(configuration: Configuration) -> float:
    return Formula().tokens_per_second(configuration)


def fastest(searched: Searched) -> Configuration:
    return max((t for t in searched.tried if t.feasible), key=lambda t: t.tokens_per_second).configuration


def passes(world: World, configuration: Configuration) -> bool:
    objective = keep_accuracy(world)
    return objective.chance(world.evaluator().measure(configuration), world.target()) >= objective.wanted


def best_there_is(world: World, arm: Configuration) -> float:
    """tokens/s of the arm just below where its chance to pass first falls short, to .02 in logit(u)."""

    def holds(at: float) -> bool:
        return passes(world, arm.at(Formula().threshold(arm, at)))

    low, high = LOWEST, HIGHEST
    while high - low > 0.02:
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return speed_at(Formula(), arm, low)


@pytest.mark.parametrize("lapses", [0.0, 0.1, 0.2])
def test_on_an_uneven_curve_trials_say_what_held_and_none_is_made_twice(lapses: float) -> None:
    """128 problems are one portion, so that every trial looks at all of them."""
    searched = run(world := World(count=128, seed=3, lapses=lapses), SEVERAL, trials=30)
    assert len({t.configuration for t in searched.tried}) == len(searched.tried)
    assert all(passes(world, t.configuration) == t.feasible for t in searched.tried)


@pytest.mark.parametrize("middle", [3.0, 7.0, 10.0, 14.0])
@pytest.mark.parametrize("seed", range(2))
def test_what_is_frozen_is_expected_to_be_nearly_as_fast_as_the_best_that_passes(seed: int, middle: float) -> None:
    """The seeds are fixed, so there is no false alarm."""
    world = World(count=1000, seed=seed, middle=middle)
    searched = run(world)
    frozen = freeze(searched, ONE, world.evaluator(), world.target(), Formula(), keep_accuracy(world))
    best = best_there_is(world, Configuration("fsd-coupled", "js", 6))
    if best > 1.05 * keep_accuracy(world).lossless:
        assert expected(frozen[-1]) >= 0.93 * best
    assert len(searched.tried) <= 20


@pytest.mark.parametrize("seed", range(3))
def test_across_arms_the_winner_is_as_fast_as_the_best_arm_allows(seed: int) -> None:
    """Races on 1,000 problems; the seeds are fixed, so there is no false alarm."""
    world = World(count=1000, seed=seed, shifts=SHIFTS)
    searched = run(world, SEVERAL, drift=0.03)
    truths = {
        arm: best_there_is(World(count=1000, seed=seed, shifts={"js": SHIFTS.get(arm.divergence, 0.0)}), arm)
        for arm in (Configuration("fsd-coupled", name, 10) for name in ("js", "tv"))
    }
    assert expected(fastest(searched)) >= 0.98 * max(truths.values())
    assert world.decoded <= 14 * world.count
    assert world.fresh <= 7 * world.count


def test_of_several_shapes_the_one_that_bears_most_wins_and_none_bounds_another() -> None:
    """Races on 1,000 problems; the seed is fixed, so there is no false alarm."""
    rising, falling = (made.identity for made in (Schedule(0.5, 1.0, over=9), Schedule(1.0, 0.5, over=9)))
    space = Space(("fsd-coupled",), ("js",), (4, 10), (None, rising, falling))
    assert [{arm.policy for arm in family} for family in space.families] == [{None}, {rising}, {falling}]
    assert kin(*space.families[0])
    assert not kin(space.families[0][0], space.families[1][0])
    shifts = {rising or "": 0.8, falling or "": -0.8}
    searched = run(World(count=1000, shifts=shifts), space)
    assert fastest(searched).policy == rising
    assert len({t.configuration.policy for t in searched.tried}) == 3
    alone = best_there_is(World(count=1000, shifts={"js": 0.8}), Configuration("fsd-coupled", "js", 10))
    assert expected(fastest(searched)) >= 0.98 * alone


def test_a_race_stops_early_where_the_matter_is_clear_and_decides_as_the_whole_part_would() -> None:
    """40 races; each errs with a chance below .02 (three looks at 2.5 deviations), and hardly any is near the edge:
    3 errors or more would be a false alarm once in 100. The seeds are fixed."""
    wrong = 0
    for seed in range(4):
        world = World(count=1000, seed=seed)
        evaluator, target, asked = world.evaluator(), world.target(), []
        for at in range(-1, 9):
            fuzzy = Configuration("fsd-coupled", "js", 6)
            fuzzy = fuzzy.at(Formula().threshold(fuzzy, at))
            raced = race(evaluator, fuzzy, target, keep_accuracy(world), Formula(), lambda done: None)
            asked.append(raced.seen.fuzzy.problems)
            wrong += (raced.judged.shortfall <= 0) != passes(world, fuzzy)
        assert asked[-1] == 128
        assert 1000 in asked
    assert wrong <= 2


@pytest.mark.parametrize("stop", [1, 4, 9])
def test_a_search_that_was_stopped_goes_on_as_if_it_had_not_been(stop: int, tmp_path: Path) -> None:
    journal = str(tmp_path / "study.log")
    whole = run(World(count=300, seed=5, shifts=SHIFTS), SEVERAL)

    def part(trials: int) -> tuple[Searched, World]:
        world = World(count=300, seed=5, shifts=SHIFTS)
        done = search(
            world.evaluator(), world.target(), Formula(), SEVERAL, keep_accuracy(world), journal, "s", trials, Silent()
        )
        return done, world

    before, _ = part(stop)
    after, world = part(60)
    assert before.tried == whole.tried[:stop]
    assert after == whole
    assert {c for c, _ in world.calls} == {t.configuration for t in whole.tried[stop:]}


def test_what_was_skipped_is_said_with_the_reason() -> None:
    searched = run(World(count=300, shifts=SHIFTS), SEVERAL)
    assert len(searched.skipped) == 3
    assert "fsd-coupled by js at L = 2" in searched.skipped[0]
    assert "expected to add 0.1%" in searched.skipped[0]
    cut = run(World(count=300, shifts=SHIFTS), SEVERAL, trials=1)
    assert any("the trials ran out" in line for line in cut.skipped)


def test_nothing_holds_and_everything_holds() -> None:
    hopeless = run(World(count=128, middle=-30), SEVERAL)
    assert not any(t.feasible for t in hopeless.tried)
    assert {t.configuration.divergence for t in hopeless.tried} == set(SEVERAL.divergences)
    harmless = run(World(count=1000, middle=60, gained=0), ONE)
    assert max(t.logit_share for t in harmless.tried if t.feasible) > HIGHEST - 1.5
    assert len(harmless.tried) <= 6


@pytest.mark.parametrize("seed", range(3))
def test_the_smallest_threshold_that_is_fast_enough(seed: int) -> None:
    world, objective = World(count=600, seed=seed, shifts=SHIFTS), MaxAccuracy(135.0)
    searched = run(world, SEVERAL, objective, drift=0.05)
    assert {t.configuration.divergence for t in searched.tried if t.feasible} == set(SEVERAL.divergences)
    assert len(searched.tried) <= 12
    (chosen,) = freeze(searched, SEVERAL, world.evaluator(), world.target(), Formula(), objective)
    speed = Formula().measured(world.evaluator().measure(chosen))
    assert objective.needed <= speed <= 1.02 * objective.needed
    rivals = [t for t in searched.tried if t.feasible and t.problems == world.count]
    assert world.retention(chosen) >= max(t.retention for t in rivals) - 1e-9


def test_a_speed_out_of_reach_takes_no_trial() -> None:
    searched = run(World(), SEVERAL, MaxAccuracy(1000.0))
    assert searched.tried == ()
    assert all("no threshold of it reaches 1030 tokens/s" in line for line in searched.skipped)
    assert freeze(searched, SEVERAL, World().evaluator(), World().target(), Formula(), MaxAccuracy(1000.0)) == []


def test_the_front_has_no_point_that_another_beats() -> None:
    world = World(count=300, shifts=SHIFTS, middle=7)
    searched = run(world, SEVERAL, ParetoFront())
    front = nondominated(searched.tried)
    assert len(front) >= 4
    assert len({(t.configuration) for t in searched.tried}) == len(searched.tried)
    for t in searched.tried:
        assert t.problems == world.count
        assert any(o.retention >= t.retention and o.tokens_per_second >= t.tokens_per_second for o in front)
    pairs = list(pairwise(front))
    assert all(a.retention > b.retention and a.tokens_per_second < b.tokens_per_second for a, b in pairs)


@pytest.mark.parametrize("seed", range(4))
def test_the_frozen_sequence_goes_from_safe_to_fast(seed: int) -> None:
    world = World(count=1000, seed=seed, shifts=SHIFTS)
    searched = run(world, SEVERAL)
    evaluator, target = world.evaluator(), world.target()
    objective = keep_accuracy(world)
    frozen = freeze(searched, SEVERAL, evaluator, target, Formula(), objective)
    speeds = [Formula().measured(evaluator.measure(c)) for c in frozen]
    assert speeds == sorted(set(speeds))
    chances = [objective.chance(evaluator.measure(c), target) for c in frozen]
    assert chances[0] >= 0.9
    assert all(chance >= 0.3 for chance in chances[:-1])  # by what they showed; beliefs are smoother
    assert max(speeds) >= 0.98 * expected(fastest(searched))


def test_where_nothing_holds_the_safest_is_frozen_and_nothing_where_nothing_was_tried() -> None:
    world = World(count=128, middle=-30)
    objective = keep_accuracy(world)
    frozen = freeze(run(world, ONE), ONE, world.evaluator(), world.target(), Formula(), objective)
    assert len(frozen) == 1
    assert freeze(Searched((), ()), ONE, world.evaluator(), world.target(), Formula(), objective) == []


def test_an_empty_space_is_refused() -> None:
    assert "no draft lengths" in usage_error(lambda: Space(("fsd",), ("js",), ()))


@given(wanted=st.floats(40, 200))
def test_the_first_share_that_is_as_fast(wanted: float) -> None:
    arm = Configuration("fsd-coupled", "js", 6)
    found = first_as_fast(Formula(), arm, wanted)
    if found is None:
        assert speed_at(Formula(), arm, HIGHEST) < wanted
    else:
        assert speed_at(Formula(), arm, found) >= wanted
        assert found == LOWEST or speed_at(Formula(), arm, found - 1e-6) < wanted


def test_logit_is_the_inverse_of_the_share() -> None:
    assert Formula().threshold(ONE.families[0][0], logit(0.97)) == pytest.approx(0.97)
