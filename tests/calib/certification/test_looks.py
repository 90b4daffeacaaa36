"""Looks: their places, their levels, and the law of what passes, against simulated paths."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr, ndtri

from fsd_calib.certification.certificate import certify_sequence
from fsd_calib.certification.claim import Claim
from fsd_calib.certification.looks import Begun, Looks, Seen, combined
from fsd_calib.certification.outcomes import Paired
from fsd_decoding.profile.certificate import attempt_level

DELTA = 0.045
numbers, few = st.integers(1, 100), st.integers(1, 16)
levels = st.sampled_from([0.5, 0.045, 0.003, 1e-5])


@given(st.integers(1, 5000), numbers)
def test_looks_rise_to_the_whole_part_and_are_apart(problems: int, number: int) -> None:
    looks = Looks.evenly(problems, number)
    apart = np.diff(looks.problems, prepend=0)
    assert looks.whole == problems
    assert len(looks.problems) <= number
    assert (apart >= min(0.005 * problems, problems)).all()
    if problems % number == 0 and number <= 50:
        assert set(apart) == {problems // number}


@given(st.lists(st.integers(1, 60), min_size=1, max_size=30), numbers)
def test_a_look_waits_for_the_end_of_a_group(sizes: list[int], number: int) -> None:
    groups = np.repeat(np.arange(len(sizes)), sizes)
    assert {*Looks.evenly(len(groups), number, groups).problems} <= {*np.cumsum(sizes).tolist()}


def test_one_look_has_the_whole_level() -> None:
    assert Looks((700,)).level(700, DELTA) == DELTA
    assert Looks((700,)).outlook(0.8, DELTA) == pytest.approx((0.8, 1.0))
    with pytest.raises(ValueError, match=r"300 problems are none of the looks \(700,\)"):
        Looks((700,)).level(300, DELTA)


@settings(max_examples=20)
@given(st.integers(10, 300), few, levels)
def test_levels_rise_and_spend_what_there_is(between: int, number: int, delta: float) -> None:
    looks = Looks.evenly(number * between, number)
    each = [looks.level(at, delta) for at in looks.problems]
    assert each == sorted(each)
    assert each[-1] <= delta <= sum(each) * (1 + 1e-9)
    walk = looks.walk(delta)
    assert walk.as_good(len(each) - 1, walk.heights[-1], 0.0) == pytest.approx(delta, rel=1e-6)


def test_the_first_look_has_what_is_spent_until_then() -> None:
    assert Looks.evenly(100, 2).level(50, 0.05) == pytest.approx(0.05 / 16)
    assert Looks((75, 100)).level(75, 0.05) == pytest.approx(0.05 * 0.75**4)


@pytest.mark.parametrize("number", [2, 8, 40])
@pytest.mark.parametrize("drift", [-2.0, 0.0, 1.7, 3.5])
def test_the_law_is_that_of_simulated_paths(number: int, drift: float) -> None:
    """100,000 paths: of the 36 comparisons one at 4.5 standard errors is a false alarm with a chance below .0003."""
    walk, rng, runs = Looks.evenly(4000, number).walk(DELTA), np.random.default_rng(number), 100_000
    times = np.array(walk.times)
    steps = np.diff(times, prepend=0)
    paths = (rng.normal(size=(runs, number)) * steps**0.5 + drift * steps).cumsum(1) / times**0.5
    passed = paths >= np.array(walk.heights)
    anywhere = walk.as_good(number - 1, walk.heights[-1], drift)
    assert abs(passed.any(1).mean() - anywhere) <= 4.5 * (anywhere * (1 - anywhere) / runs) ** 0.5 + 1e-6
    middle, height = number // 2, walk.heights[number // 2] + 0.3
    better = (passed[:, :middle].any(1) | (paths[:, middle] >= height)).mean()
    expected = walk.as_good(middle, height, drift)
    assert abs(better - expected) <= 4.5 * (expected * (1 - expected) / runs) ** 0.5 + 1e-6
    chance, share = walk.outlook(drift)
    assert anywhere - 0.01 <= chance <= anywhere
    assert share < (passed.argmax(1) * passed.any(1) + (number - 1) * ~passed.any(1) + 1).mean() / number + 0.01


def test_more_looks_decode_less_and_pass_hardly_less_often() -> None:
    before = (0.8, 1.0)
    for number in (2, 4, 8, 20, 50):
        chance, share = Looks.evenly(4000, number).outlook(0.8, DELTA)
        assert 0.775 < chance < before[0]
        assert share < before[1]
        before = chance, share


@settings(max_examples=20)
@given(few, levels, st.floats(0.05, 0.99))
def test_the_power_that_gives_a_chance(number: int, delta: float, chance: float) -> None:
    looks = Looks.evenly(4000, number)
    if chance > delta:
        assert looks.outlook(looks.power_for(chance, delta), delta)[0] == pytest.approx(chance, abs=1e-9)


@pytest.mark.parametrize("power", [0.0, 1e-12, 1.0])
def test_any_power_has_an_outlook(power: float) -> None:
    chance, share = Looks.evenly(800, 8).outlook(power, DELTA)
    assert chance == pytest.approx(power, abs=1e-6)
    assert 1 / 8 - 1e-9 <= share <= 1


@given(st.integers(0, 7), st.floats(0, 3), st.floats(-6, 6))
def test_what_passes_better_is_rarer(look: int, more: float, drift: float) -> None:
    walk = Looks.evenly(800, 8).walk(DELTA)
    just, better = (walk.share_as_good(look, walk.heights[look] + each, drift) for each in (0.0, more))
    assert 0 <= better <= just <= 1 + 1e-12


def test_of_one_look_the_share_is_a_ratio_of_tails() -> None:
    walk = Looks((100,)).walk(DELTA)
    expected = ndtr(-2.5 + 1) / ndtr(-walk.heights[0] + 1)
    assert walk.share_as_good(0, 2.5, 1.0) == pytest.approx(expected)


# Attempts that go on


def gone_on(first: int, *more: int, number: int = 4) -> Looks:
    """Looks of a first attempt, of so many problems, and of those that go on from it."""
    looks = Looks.evenly(first, number)
    for problems in more:
        looks = looks.extended(Looks.evenly(problems, number))
    return looks.sized([attempt_level(0.95, 1 + each) for each in range(1 + len(more))])


@settings(max_examples=20)
@given(st.integers(40, 2000), st.lists(st.integers(1, 3000), min_size=1, max_size=2), few)
def test_who_goes_on_spends_the_level_of_each_attempt(first: int, more: list[int], number: int) -> None:
    """What was spent before stays as it was, whatever follows."""
    looks = gone_on(first, *more, number=number)
    sizes = np.cumsum([attempt_level(0.95, 1 + each) for each in range(1 + len(more))])
    ends, total = np.cumsum([first, *more]), float(sizes[-1])
    assert [total * looks.spent(end) for end in ends.tolist()] == pytest.approx(sizes)
    spent = [looks.spent(each) for each in looks.problems]
    assert spent == sorted(spent)
    before = Looks.evenly(first, number)
    for problems in before.problems:
        assert looks.level(problems, total) == pytest.approx(before.level(problems, 0.045), rel=1e-9)
    walk = looks.walk(total)
    assert walk.as_good(len(walk.times) - 1, walk.heights[-1], 0.0) == pytest.approx(total, rel=1e-6)


def test_each_stage_takes_as_long_as_any_other() -> None:
    looks = gone_on(100, 400)
    assert [looks.time(each) for each in (50, 100, 200, 500)] == pytest.approx([0.25, 0.5, 0.625, 1.0])
    assert looks.seen(200) == [Seen(0, 100, 1.0), Seen(100, 200, 0.25)]


def test_who_goes_on_is_tested_less_strictly_than_by_an_attempt_of_its_own() -> None:
    looks = gone_on(660, 660, number=1)
    assert looks.level(1320, 0.045 + attempt_level(0.95, 2)) > 1.5 * attempt_level(0.95, 2)


@given(st.lists(st.floats(1e-12, 1 - 1e-12), min_size=1, max_size=3), st.floats(0.01, 1))
def test_stages_add_up_as_steps_of_a_walk(p: list[float], last: float) -> None:
    times = [*[1.0] * (len(p) - 1), last]
    z = -(ndtri(p) * np.sqrt(times)).sum() / sum(times) ** 0.5
    assert combined(p, times) == pytest.approx(ndtr(-z))
    lower = [p[0] / 2, *p[1:]]
    assert combined(lower, times) < combined(p, times)


@pytest.mark.parametrize("p", [0.06, 0.3])
def test_the_outlook_of_who_goes_on_is_that_of_simulated_paths(p: float) -> None:
    """100,000 paths: of four comparisons one at 4.5 standard errors is a false alarm with a chance below .00003.

    Simulated paths are not given up, which costs less than .01 of the chance.
    """
    looks, delta, runs, power = gone_on(660, 990), 0.045 + attempt_level(0.95, 2), 100_000, 0.7
    walk, rng = looks.walk(delta), np.random.default_rng(3)
    times = np.array(walk.times)[4:]
    drift = (ndtri(power) - ndtri(delta)) / 0.5**0.5
    steps = np.diff(times, prepend=0.5)
    paths = (rng.normal(size=(runs, len(times))) * steps**0.5 + drift * steps).cumsum(1) - ndtri(p) * 0.5**0.5
    expected = float((paths / times**0.5 >= np.array(walk.heights)[4:]).any(1).mean())
    chance, share = looks.outlook(power, delta, Begun(660, p))
    noise = 4.5 * (expected * (1 - expected) / runs) ** 0.5
    assert expected - 0.01 - noise <= chance <= expected + noise
    assert 0 < share < 1
    assert looks.outlook(looks.power_for(0.8, delta, Begun(660, p)), delta, Begun(660, p))[0] == pytest.approx(0.8)


@pytest.mark.slow
@pytest.mark.parametrize("number", [2, 8])
def test_bounds_hold_given_that_it_passed_at_any_look(number: int) -> None:
    """Settings that keep .985 where .98 is wanted: of those that pass, a bound above the truth may be .05 / 3.

    Of some 400 certificates more than 17 wrong ones have a chance below .0005, were the share that; the seed is fixed.
    """
    rng, looks = np.random.default_rng(number), Looks.evenly(1600, number)
    claim, wrong, passed, early = Claim(0.98, looks=looks), 0, 0, 0
    for _ in range(1200):
        kind = rng.choice(4, p=[0.77, 0.03, 0.018, 0.182], size=1600)  # .985 of .8
        part = Paired((kind <= 1)[:, None], (kind % 2 == 0)[:, None])
        prefixes = (Paired(part.target[:n], part.fuzzy[:n]) for n in looks.problems)
        (evidence,) = certify_sequence([prefixes], claim, DELTA).tested
        if evidence.given_passing is not None:
            passed, early = passed + 1, early + (evidence.paired.problems < 1600)
            wrong += evidence.given_passing.kept > 0.985
    assert passed > 100
    assert early > 10
    assert wrong <= 17
