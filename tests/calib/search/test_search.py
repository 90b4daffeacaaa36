"""Searches of a simulated world: the result, its cost, workers, and that a stopped search resumes to it."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.study import Study
from optuna.trial import TrialState

from fsd_calib.search import sampler
from fsd_calib.search.forecast import least_share_reaching, speed_at
from fsd_calib.search.max_accuracy import MaxAccuracy
from fsd_calib.search.objective import Objective
from fsd_calib.search.pareto import ParetoFront, nondominated
from fsd_calib.search.sampler import KEY, Workers, fail_dead_trials, heartbeats
from fsd_calib.search.space import Space, logit, same_family
from fsd_calib.search.study_storage import open_journal
from fsd_calib.search.trials import SearchResult, freeze, race, search
from fsd_calib.storage import this_process
from fsd_common.progress.base import Silent
from fsd_decoding.adaptive import Schedule
from fsd_decoding.profile.setting import Setting
from support.calibration.simulated_worlds import HIGHEST, LOWEST, Formula, World, keep_accuracy
from support.messages import usage_error

ONE = Space(("fsd-coupled",), ("js",), (6,))
SEVERAL = Space(("fsd-coupled",), ("js", "kl_qp", "tv"), (2, 4, 6, 8, 10))
SHIFTS = {"kl_qp": -0.8, "tv": 0.6}


def run(
    world: World, space: Space = ONE, objective: Objective | None = None, trials: int = 60, drift: float = 0.0
) -> SearchResult:
    objective = objective or keep_accuracy(world)
    return search(
        world.evaluator(), world.target(), Formula(drift=drift), space, objective, None, "study", trials, Silent()
    )


def expected(setting: Setting) -> float:
    return Formula().tokens_per_second(setting)


def fastest(searched: SearchResult) -> Setting:
    return max((t for t in searched.trials if t.feasible), key=lambda t: t.tokens_per_second).setting


def passes(world: World, setting: Setting) -> bool:
    objective = keep_accuracy(world)
    return objective.chance(world.evaluator().measure(setting), world.target()) >= objective.wanted


def fastest_possible(world: World, arm: Setting) -> float:
    """Returns the arm's tokens/s just below where its chance of passing first falls short, to .02 in logit(u)."""

    def holds(at: float) -> bool:
        return passes(world, arm.at(Formula().threshold(arm, at)))

    low, high = LOWEST, HIGHEST
    while high - low > 0.02:
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return speed_at(Formula(), arm, low)


@pytest.mark.thinned(every=3)
@pytest.mark.parametrize("lapses", [0.0, 0.1, 0.2])
def test_trials_record_what_held_and_none_is_repeated(lapses: float) -> None:
    """128 problems are one portion, so that every trial decodes all of them."""
    searched = run(world := World(count=128, seed=3, lapses=lapses), SEVERAL, trials=30)
    assert len({t.setting for t in searched.trials}) == len(searched.trials)
    assert all(passes(world, t.setting) == t.feasible for t in searched.trials)


@pytest.mark.thinned(every=8)
@pytest.mark.parametrize("middle", [3.0, 7.0, 10.0, 14.0])
@pytest.mark.parametrize("seed", range(2))
def test_the_frozen_sequence_is_nearly_as_fast_as_the_best_that_passes(seed: int, middle: float) -> None:
    """The seeds are fixed, so there is no false alarm."""
    world = World(count=1000, seed=seed, middle=middle)
    searched = run(world)
    frozen = freeze(searched, ONE, world.evaluator(), world.target(), Formula(), keep_accuracy(world))
    best = fastest_possible(world, Setting("fsd-coupled", "js", 6))
    if best > 1.05 * keep_accuracy(world).lossless:
        assert expected(frozen[-1]) >= 0.93 * best
    assert len(searched.trials) <= 20


@pytest.mark.thinned(every=3)
@pytest.mark.parametrize("seed", range(3))
def test_the_winner_is_nearly_as_fast_as_the_best_arm_allows(seed: int) -> None:
    """Races on 1,000 problems; the seeds are fixed, so there is no false alarm."""
    world = World(count=1000, seed=seed, shifts=SHIFTS)
    searched = run(world, SEVERAL, drift=0.03)
    truths = {
        arm: fastest_possible(World(count=1000, seed=seed, shifts={"js": SHIFTS.get(arm.score, 0.0)}), arm)
        for arm in (Setting("fsd-coupled", name, 10) for name in ("js", "tv"))
    }
    assert expected(fastest(searched)) >= 0.98 * max(truths.values())
    assert world.decoded <= 14 * world.count
    assert world.fresh <= 7 * world.count


def test_the_best_of_several_policies_wins() -> None:
    """Races on 1,000 problems; the seed is fixed, so there is no false alarm."""
    rising, falling = (schedule.identity for schedule in (Schedule(0.5, 1.0, over=9), Schedule(1.0, 0.5, over=9)))
    space = Space(("fsd-coupled",), ("js",), (4, 10), (None, rising, falling))
    assert [{arm.policy and arm.policy.identity for arm in family} for family in space.families] == [
        {None},
        {rising},
        {falling},
    ]
    assert same_family(*space.families[0])
    assert not same_family(space.families[0][0], space.families[1][0])
    shifts = {rising or "": 0.8, falling or "": -0.8}
    searched = run(World(count=1000, shifts=shifts), space)
    best = fastest(searched).policy
    assert best is not None
    assert best.identity == rising
    assert len({t.setting.policy for t in searched.trials}) == 3
    alone = fastest_possible(World(count=1000, shifts={"js": 0.8}), Setting("fsd-coupled", "js", 10))
    assert expected(fastest(searched)) >= 0.98 * alone


@pytest.mark.slow
def test_a_race_stops_early_and_decides_as_the_whole_part_would() -> None:
    """40 races; each errs with a chance below .02 (three looks at 2.5 deviations), and hardly any is near the limit: 3
    errors or more would be a false alarm once in 100. The seeds are fixed."""
    wrong = 0
    for seed in range(4):
        world = World(count=1000, seed=seed)
        evaluator, target, decoded = world.evaluator(), world.target(), []
        for at in range(-1, 9):
            fuzzy = Setting("fsd-coupled", "js", 6)
            fuzzy = fuzzy.at(Formula().threshold(fuzzy, at))
            assessment, raced = race(evaluator, fuzzy, target, keep_accuracy(world), Formula(), lambda done: None)
            decoded.append(raced.problems)
            wrong += (assessment.shortfall <= 0) != passes(world, fuzzy)
        assert decoded[-1] == 128
        assert 1000 in decoded
    assert wrong <= 2


@pytest.mark.thinned(every=3)
@pytest.mark.parametrize("stop", [1, 4, 9])
def test_a_stopped_search_resumes_to_the_same_result(stop: int, tmp_path: Path) -> None:
    journal = str(tmp_path / "study.log")
    whole = run(World(count=300, seed=5, shifts=SHIFTS), SEVERAL)

    def part(trials: int) -> tuple[SearchResult, World]:
        world = World(count=300, seed=5, shifts=SHIFTS)
        done = search(
            world.evaluator(), world.target(), Formula(), SEVERAL, keep_accuracy(world), journal, "s", trials, Silent()
        )
        return done, world

    before, _ = part(stop)
    after, world = part(60)
    assert before.trials == whole.trials[:stop]
    assert after == whole
    assert {c for c, _ in world.calls} == {t.setting for t in whole.trials[stop:]}


def test_untried_arms_are_reported_with_the_reason() -> None:
    searched = run(World(count=300, shifts=SHIFTS), SEVERAL)
    assert re.match(r"[1-9]\d* of \d+ ways to decode .* were not tried: no trial of it was expected to add 0.1%",
                    searched.untried)  # fmt: skip
    cut = run(World(count=300, shifts=SHIFTS), SEVERAL, trials=1)
    assert "the trials ran out" in cut.untried


@pytest.mark.slow
def test_worlds_where_every_or_no_threshold_is_feasible() -> None:
    hopeless = run(World(count=128, middle=-30), SEVERAL)
    assert not any(t.feasible for t in hopeless.trials)
    assert {t.setting.score for t in hopeless.trials} == set(SEVERAL.scores)
    harmless = run(World(count=1000, middle=60, gained=0), ONE)
    assert max(t.logit_share for t in harmless.trials if t.feasible) > HIGHEST - 1.5
    assert len(harmless.trials) <= 6


@pytest.mark.thinned(every=3)
@pytest.mark.parametrize("seed", range(3))
def test_the_smallest_threshold_that_is_fast_enough(seed: int) -> None:
    world, objective = World(count=600, seed=seed, shifts=SHIFTS), MaxAccuracy(135.0)
    searched = run(world, SEVERAL, objective, drift=0.05)
    assert {t.setting.score for t in searched.trials if t.feasible} == set(SEVERAL.scores)
    assert len(searched.trials) <= 12
    (chosen,) = freeze(searched, SEVERAL, world.evaluator(), world.target(), Formula(), objective)
    speed = Formula().measured(world.evaluator().measure(chosen))
    assert objective.needed <= speed <= 1.02 * objective.needed
    rivals = [t for t in searched.trials if t.feasible and t.problems == world.count]
    assert world.retention(chosen) >= max(t.retention for t in rivals) - 1e-9


def test_a_speed_out_of_reach_takes_no_trial() -> None:
    searched = run(World(), SEVERAL, MaxAccuracy(1000.0))
    assert searched.trials == ()
    assert searched.untried.count("no threshold of it reaches 1030 tokens/s") == 1
    assert freeze(searched, SEVERAL, World().evaluator(), World().target(), Formula(), MaxAccuracy(1000.0)) == []


def test_no_point_of_the_front_is_dominated() -> None:
    world = World(count=300, shifts=SHIFTS, middle=7)
    searched = run(world, SEVERAL, ParetoFront())
    front = nondominated(searched.trials)
    assert len(front) >= 4
    assert len({(t.setting) for t in searched.trials}) == len(searched.trials)
    for t in searched.trials:
        assert t.problems == world.count
        assert any(o.retention >= t.retention and o.tokens_per_second >= t.tokens_per_second for o in front)
    pairs = list(pairwise(front))
    assert all(a.retention > b.retention and a.tokens_per_second < b.tokens_per_second for a, b in pairs)


@pytest.mark.thinned(every=4)
@pytest.mark.parametrize("seed", range(4))
def test_the_frozen_sequence_is_ordered_from_safe_to_fast(seed: int) -> None:
    world = World(count=1000, seed=seed, shifts=SHIFTS)
    searched = run(world, SEVERAL)
    evaluator, target = world.evaluator(), world.target()
    objective = keep_accuracy(world)
    frozen = freeze(searched, SEVERAL, evaluator, target, Formula(), objective)
    speeds = [Formula().measured(evaluator.measure(c)) for c in frozen]
    assert speeds == sorted(set(speeds))
    chances = [objective.chance(evaluator.measure(c), target) for c in frozen]
    assert chances[0] >= 0.9
    assert all(chance >= 0.3 for chance in chances[:-1])  # by what they showed; predictions are smoother
    assert max(speeds) >= 0.98 * expected(fastest(searched))


def test_without_a_feasible_trial_the_safest_is_frozen_and_without_trials_nothing() -> None:
    world = World(count=128, middle=-30)
    objective = keep_accuracy(world)
    frozen = freeze(run(world, ONE), ONE, world.evaluator(), world.target(), Formula(), objective)
    assert len(frozen) == 1
    assert freeze(SearchResult((), ""), ONE, world.evaluator(), world.target(), Formula(), objective) == []


def test_an_empty_space_is_refused() -> None:
    assert "no draft lengths" in usage_error(lambda: Space(("fsd",), ("js",), ()))


@given(wanted=st.floats(40, 200))
def test_the_least_share_that_reaches_a_speed(wanted: float) -> None:
    arm = Setting("fsd-coupled", "js", 6)
    found = least_share_reaching(Formula(), arm, wanted)
    if found is None:
        assert speed_at(Formula(), arm, HIGHEST) < wanted
    else:
        assert speed_at(Formula(), arm, found) >= wanted
        assert found == LOWEST or speed_at(Formula(), arm, found - 1e-6) < wanted


def test_logit_is_the_inverse_of_the_share() -> None:
    assert Formula().threshold(ONE.families[0][0], logit(0.97)) == pytest.approx(0.97)


HERE: dict[str, Any] = this_process()
DEAD: dict[str, Any] = HERE | {"process": 2**22 + 1}  # beyond the largest id
ELSEWHERE: dict[str, Any] = DEAD | {"boot": "another"}


def study_of(*named: Mapping[str, Any] | None) -> Study:
    """Returns a study with a running trial of each worker; None: it has not named itself."""
    study = optuna.create_study()
    for worker in named:
        trial = study.ask()
        if worker is not None:
            trial.set_user_attr(KEY, dict(worker))
    return study


def running(study: Study, seen: Workers) -> list[int]:
    return [trial.number for trial in seen.running(study.get_trials(deepcopy=False))]


def test_trials_of_dead_processes_are_failed_and_no_others() -> None:
    study = study_of(HERE, DEAD, ELSEWHERE, None)
    assert running(study, Workers()) == [0, 2, 3]
    fail_dead_trials(study)
    assert [t.state.name for t in study.trials] == ["RUNNING", "FAIL", "RUNNING", "RUNNING"]


def test_a_silent_trial_is_ignored_but_not_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_SILENT", "_UNNAMED"):
        monkeypatch.setattr(sampler, name, 0.3)
    study, seen = study_of(HERE, ELSEWHERE, None), Workers()
    assert running(study, seen) == [0, 1, 2]
    time.sleep(0.4)
    assert running(study, seen) == [0]
    fail_dead_trials(study)
    assert {t.state for t in study.trials} == {TrialState.RUNNING}


@pytest.mark.slow
def test_a_trial_with_heartbeats_is_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Through a journal, as another machine would see it."""
    monkeypatch.setattr(sampler, "_SILENT", 1.0)
    journals = [open_journal(tmp_path / "study.log") for _ in range(2)]
    trial = optuna.create_study(storage=journals[0], study_name="study").ask()
    trial.set_user_attr(KEY, ELSEWHERE)
    study, seen = optuna.load_study(storage=journals[1], study_name="study"), Workers()
    with heartbeats(trial, 0.1):
        for _ in range(8):
            assert running(study, seen) == [0]
            time.sleep(0.25)
    time.sleep(1.2)
    running(study, seen)  # the last heartbeat
    time.sleep(1.2)
    assert running(study, seen) == []


@pytest.mark.parametrize("off", [timedelta(days=-400), timedelta(hours=9)])
def test_clocks_of_other_machines_do_not_matter(off: timedelta) -> None:
    """A trial begins at a time without a zone, by the clock of its machine."""
    began = (datetime.now(UTC) + off).replace(tzinfo=None)
    study = optuna.create_study()
    for worker in (ELSEWHERE, None):
        template = optuna.trial.create_trial(
            state=TrialState.RUNNING, user_attrs={} if worker is None else {KEY: worker}
        )
        template.datetime_start = began
        study._storage.create_new_trial(study._study_id, template_trial=template)
    assert {t.datetime_start for t in study.trials} == {began}
    assert running(study, Workers()) == [0, 1]
