"""The betting test: a martingale under H0, with and without replacement, and its p-values."""

from __future__ import annotations

import math
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fsd_calib.certification.betting_test import p_values

PAIRS = [(0, 0), (0, 1), (1, 0), (1, 1)]
grades = st.lists(
    st.tuples(st.sampled_from([0, 1 / 3, 1.0]), st.sampled_from([0, 1 / 3, 1.0])), min_size=1, max_size=30
)


def wealth(p: float) -> float:
    return 1 / p if p else math.inf


@given(grades, st.floats(0.2, 1.5), st.floats(0.2, 1.5), st.booleans(), st.integers(0, 20))
def test_p_rises_with_what_is_wanted(
    pairs: list[tuple[float, float]], one: float, other: float, finite: bool, rest: int
) -> None:
    target, fuzzy = np.array(pairs).T
    low, high = sorted([one, other])
    whole = len(pairs) + rest if finite else None
    p = [float(p_values(target, fuzzy, wanted, whole)) for wanted in (low, high)]
    assert 0 <= p[0] <= p[1] + 1e-9 <= 1 + 1e-9


@given(grades, grades, st.floats(0.2, 1.5))
def test_further_problems_never_raise_p(
    first: list[tuple[float, float]], further: list[tuple[float, float]], wanted: float
) -> None:
    target, fuzzy = np.array(first + further).T
    before = p_values(target[: len(first)], fuzzy[: len(first)], wanted)
    assert p_values(target, fuzzy, wanted) <= before + 1e-12


@given(st.lists(st.sampled_from(PAIRS), max_size=5), st.sampled_from([(1, 0), (1, 1)]), st.floats(0.001, 1.0))
def test_the_level_is_kept_in_any_dataset(
    problems: list[tuple[int, int]], solved: tuple[int, int], excess: float
) -> None:
    """Over all orders of a dataset with H0 true: p <= delta in a share of at most delta, for every delta."""
    problems = [*problems, solved]
    target, fuzzy = np.array(problems, float).T
    wanted = fuzzy.sum() / target.sum() + excess
    orders = np.array(list(permutations(range(len(problems)))))
    for pairs in range(1, len(problems) + 1):
        p = p_values(target[orders[:, :pairs]], fuzzy[orders[:, :pairs]], wanted, len(problems))
        assert all((p <= delta + 1e-12).mean() <= delta + 1e-9 for delta in np.unique(p))


@given(st.lists(st.sampled_from(PAIRS), min_size=1, max_size=40), st.floats(0.3, 1.2), st.integers(0, 40))
def test_p_is_0_or_1_where_the_rest_cannot_change_the_result(
    problems: list[tuple[int, int]], wanted: float, rest: int
) -> None:
    target, fuzzy = np.array(problems, float).T
    p, kept, solved = float(p_values(target, fuzzy, wanted, len(problems) + rest)), fuzzy.sum(), target.sum()
    assume(min(abs(kept - wanted * (solved + rest)), abs(kept + rest - wanted * solved)) > 1e-6)
    assert (p == 0) == (kept > wanted * (solved + rest))
    if kept + rest < wanted * solved:
        assert p == 1


def test_a_certain_result_overrides_the_wealth() -> None:
    target = np.ones(400)
    fuzzy = (np.arange(400) < 300).astype(float)
    assert p_values(target[:300], fuzzy[:300], 0.98, 400) < 0.05  # such an order is within the level
    assert p_values(target, fuzzy, 0.98, 400) == 1.0


def test_a_dataset_that_retains_exactly_what_is_wanted_passes() -> None:
    right = np.ones(30)
    assert p_values(right, right, 1.0, 30) == 0.0
    assert p_values(right, right, 1.0) == 1.0  # a population requires more


@pytest.mark.parametrize("whole", [None, 1000])
def test_the_wealth_is_a_martingale_on_the_boundary_of_h0(whole: int | None) -> None:
    """The expected wealth is 1 under the least favourable law of H0: the test is not conservative there."""
    if whole is None:
        law, wanted = {(1, 1): 0.75, (1, 0): 0.03, (0, 1): 0.014, (0, 0): 0.206}, 0.764 / 0.78
        assert sum(p * (f / wanted - t) for (t, f), p in law.items()) == pytest.approx(0)
    rng = np.random.default_rng(1)
    kind = np.repeat(np.arange(4), [750, 30, 14, 206])
    drawn = rng.choice(4, p=[0.75, 0.03, 0.014, 0.206], size=(4000, 300)) if whole is None else (
        np.array([rng.permutation(kind)[:300] for _ in range(4000)])
    )  # fmt: skip
    p = p_values((drawn <= 1).astype(float), (drawn % 2 == 0).astype(float), 0.764 / 0.78, whole)
    for delta in (0.02, 0.05, 0.2):  # three standard errors: false alarms below .0013 each
        assert (p <= delta).mean() <= delta + 3 * math.sqrt(delta * (1 - delta) / 4000)
    assert (p <= 0.2).mean() > 0.2 / 4  # the test does reject


def test_two_problems_by_hand() -> None:
    stakes = (0.2, 0.4, 0.6, 0.9)
    after_one = sum(1 + c * 0.25 for c in stakes) / 4
    after_two = sum((1 + c * 0.25) * (1 - c) for c in stakes) / 4
    assert wealth(float(p_values(np.array([1.0]), np.array([1.0]), 0.8))) == pytest.approx(after_one)
    assert after_two < after_one
    assert wealth(float(p_values(np.ones(2), np.array([1.0, 0.0]), 0.8))) == pytest.approx(after_one)
    # Of 4 problems: the remaining ones have mean m = 0, then (0 - .2) / 3.
    within = sum((1 + c * 0.2 / 0.8) * (1 + c * (0.2 + 0.2 / 3) / (0.8 - 0.2 / 3)) for c in stakes) / 4
    assert wealth(float(p_values(np.ones(2), np.ones(2), 0.8, 4))) == pytest.approx(within)


def test_a_dataset_takes_fewer_problems_than_a_population() -> None:
    rng, shown = np.random.default_rng(2), []
    kind = np.repeat(np.arange(4), [790, 10, 10, 190])
    drawn = np.array([rng.permutation(kind)[:700] for _ in range(300)])
    for whole in (None, 1000):
        shown.append((p_values((drawn <= 1).astype(float), (drawn % 2 == 0).astype(float), 0.98, whole) <= 0.05).mean())
    assert shown[1] > shown[0] + 0.1


def test_shapes_are_broadcast() -> None:
    rng = np.random.default_rng(3)
    target, fuzzy = rng.random((2, 3, 4, 20)).round()
    together = p_values(target, fuzzy, 0.9)
    assert together.shape == (3, 4)
    for i, j in product(range(3), range(4)):
        assert together[i, j] == p_values(target[i, j], fuzzy[i, j], 0.9)
