"""Power of the certification test, compared with simulation of the test itself."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsd_calib.certification.multi_seed import fitted_p_values
from fsd_calib.certification.outcomes import Paired
from fsd_calib.certification.power import cells, independent_worth, least_problems, power, problems_needed
from fsd_calib.certification.score_test import p_value, p_values
from fsd_common.errors import UsageError
from fsd_decoding.profile.certificate import OutcomeCounts
from lib.validity.sizes import law


def chance(problems: int, churn: float, retention: float, accuracy: float = 0.8, wanted: float = 0.98) -> float:
    return power(problems=problems, accuracy=accuracy, churn=churn, retention=retention, wanted=wanted, delta=0.05)


def needed(churn: float, retention: float, accuracy: float = 0.8, wanted: float = 0.98) -> int | None:
    return problems_needed(accuracy=accuracy, churn=churn, retention=retention, wanted=wanted, delta=0.05, chance=0.8)


@given(st.integers(1, 300), st.integers(0, 300), st.integers(0, 300), st.integers(0, 300))
def test_cells_are_the_shares_of_the_outcomes_they_describe(n11: int, n10: int, n01: int, n00: int) -> None:
    outcomes = OutcomeCounts(n11, n10, n01, n00)
    shares = cells((n11 + n10) / outcomes.total, outcomes.churn, outcomes.retention)
    assert np.array(shares) * outcomes.total == pytest.approx([n11, n10, n01, n00], abs=1e-9)
    assert min(shares) >= 0


@pytest.mark.parametrize(
    ("accuracy", "churn", "retention"), [(0.8, 0.01, 0.98), (0.5, 0.7, 2.5), (0.9, 0.3, 1.0), (1.2, 0.0, 1.0)]
)
def test_contradicting_guesses_are_refused(accuracy: float, churn: float, retention: float) -> None:
    with pytest.raises(UsageError, match="contradict"):
        cells(accuracy, churn, retention)


@pytest.mark.parametrize(
    ("problems", "churn", "retention", "expected"),
    [
        (500, 0.01, 1.0, 0.91),
        (1319, 0.01, 1.0, 1.0),
        (1319, 0.03, 1.0, 0.95),
        (1319, 0.01, 0.99, 0.78),
        (7473, 0.01, 0.99, 1.0),
    ],
)
def test_documented_figures_of_power(problems: int, churn: float, retention: float, expected: float) -> None:
    """Summed and simulated: 20,000 draws have a standard error of .0035, and the documented figures are rounded to .01.

    The seed is fixed (else false alarms below .005 in all).
    """
    assert chance(problems, churn, retention) == pytest.approx(expected, abs=0.01)
    n11, n10, n01, n00 = np.random.default_rng(7).multinomial(problems, cells(0.8, churn, retention), size=20_000).T
    assert (p_values(n11, n10, n01, n00, 0.98) <= 0.05).mean() == pytest.approx(expected, abs=0.016)


@pytest.mark.slow
def test_power_agrees_with_simulation() -> None:
    """100 populations of 20,000 draws: 4 standard errors are .014 at most, and .01 is allowed for the error
    of the sum. The seed is fixed (else false alarms below .01 in all)."""
    rng, compared = np.random.default_rng(5), 0
    while compared < 100:
        problems, wanted = int(np.exp(rng.uniform(3.5, 8.5))), float(rng.choice([0.9, 0.95, 0.98, 1.0, 1.02]))
        accuracy, retention = float(rng.uniform(0.2, 1.0)), wanted + float(rng.uniform(0, 0.04))
        churn = abs(1 - retention) * accuracy + float(rng.uniform(0, 0.1))
        try:
            population = cells(accuracy, churn, retention)
        except UsageError:
            continue
        n11, n10, n01, n00 = rng.multinomial(problems, population, size=20_000).T
        simulated = (p_values(n11, n10, n01, n00, wanted) <= 0.05).mean()
        assert chance(problems, churn, retention, accuracy, wanted) == pytest.approx(simulated, abs=0.024)
        compared += 1


@given(st.integers(0, 20_000), st.floats(0.01, 1.0), st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.floats(0.5, 1.2))
def test_power_is_a_probability(problems: int, accuracy: float, loss: float, gain: float, wanted: float) -> None:
    lost, gained = loss * accuracy, gain * (1 - accuracy)
    churn, retention = lost + gained, 1 + (gained - lost) / accuracy
    assert 0.0 <= chance(problems, churn, retention, accuracy, wanted) <= 1.0


def test_power_without_flips() -> None:
    assert chance(148, 0.0, 1.0, accuracy=1.0) == 0.0  # .98 ** 148 > .05 >= .98 ** 149
    assert chance(149, 0.0, 1.0, accuracy=1.0) == 1.0
    assert chance(1000, 0.0, 1.0, accuracy=0.0) == 0.0
    assert chance(0, 0.01, 1.0) == 0.0


def test_power_where_all_outcomes_flip() -> None:
    assert chance(2257, 1.0, 1.0, accuracy=0.5, wanted=1.0) == pytest.approx(0.05, abs=0.005)


def test_a_probability_of_rounding_size_is_0() -> None:
    assert chance(500, 1e-310, 1.0, accuracy=1e-310) == 0.0
    assert chance(500, 1e-17, 1.0) == chance(500, 0.0, 1.0)


def test_higher_claims_have_less_power() -> None:
    assert chance(1319, 0.03, 1.0) > chance(1319, 0.06, 1.0) > chance(1319, 0.12, 1.0)
    assert chance(1319, 0.03, 1.0) > chance(1319, 0.03, 0.99) > chance(1319, 0.03, 0.98)
    assert chance(500, 0.03, 1.0) < chance(1000, 0.03, 1.0) < chance(2000, 0.03, 1.0)
    assert chance(1319, 0.03, 1.0, wanted=0.95) > chance(1319, 0.03, 1.0, wanted=0.99)


@pytest.mark.thinned(every=2)
@pytest.mark.parametrize(("churn", "retention"), [(0.0, 1.0), (0.02, 1.0), (0.02, 0.99), (0.05, 0.99)])
def test_the_problems_needed_are_close_to_the_fewest(churn: float, retention: float) -> None:
    number = needed(churn, retention)
    assert number is not None
    assert chance(number, churn, retention) >= 0.8
    assert chance(int(0.9 * number), churn, retention) < 0.8
    assert chance(int(1.1 * number), churn, retention) >= 0.78  # power is not quite monotone


@pytest.mark.parametrize("retention", [0.9, 0.98, 0.98 + 1e-6])
def test_a_false_claim_needs_infinitely_many_problems(retention: float) -> None:
    assert needed(0.1, retention) is None


@pytest.mark.parametrize("accuracy", [0.3, 0.8, 1.0])
@pytest.mark.parametrize("wanted", [0.5, 0.9, 0.98, 0.999])
def test_the_least_problems_are_just_enough(accuracy: float, wanted: float) -> None:
    number = least_problems(accuracy, wanted, 0.05)
    assert number is not None
    for problems, enough in ((number, True), (number - 1, False)):
        right = int(problems * accuracy + 1e-9)
        assert (p_values(right, 0, 0, problems - right, wanted) <= 0.05) == enough


def test_the_least_problems_of_the_best_case() -> None:
    assert least_problems(1.0, 0.98, 0.05) == 149
    assert least_problems(0.8, 0.98, 0.05) == 187
    assert least_problems(1.0, 1.0, 0.05) is None
    assert least_problems(0.8, 1.3, 0.05) is None  # gaining all gives a retention of 1.25
    gaining = least_problems(0.8, 1.02, 0.05)
    assert gaining is not None
    right = int(0.8 * gaining)
    assert p_value(OutcomeCounts(right, 0, gaining - right, 0), 1.02) <= 0.05


def test_power_with_several_seeds_is_approximately_right() -> None:
    """3 seeds, problems that differ in how easily they flip. 4,000 draws: four standard errors are .03, and .05 is
    allowed for the approximation. The seed is fixed (else false alarms below .001)."""
    rng = np.random.default_rng(8)
    table = law(3, [(0.1, 0.9, 0.12, 0.5), (0.65, 1.0, 0.003, 0.0), (0.25, 0.2, 0.0, 0.006)])
    cell = rng.choice(16, p=table.ravel(), size=200_000)
    seeds = rng.permuted(np.tile(np.arange(3), (200_000, 1)), axis=1)
    pool = Paired(seeds < (cell // 4)[:, None], seeds < (cell % 4)[:, None])
    worth = independent_worth(pool, 0.97)
    assert 1 < worth < 3
    drawn = rng.multinomial(300, table.ravel(), size=4000).reshape(-1, 4, 4)
    simulated = float((fitted_p_values(drawn, 0.97) <= 0.05).mean())
    summed = power(problems=round(300 * worth), accuracy=pool.target_accuracy, churn=pool.churn,
                   retention=pool.retention, wanted=0.97, delta=0.05)  # fmt: skip
    assert 0.2 < simulated < 0.98
    assert summed == pytest.approx(simulated, abs=0.08)


def test_seeds_that_repeat_the_first_are_worth_nothing() -> None:
    rng = np.random.default_rng(9)
    target, fuzzy = rng.random((2, 500, 1)) < 0.8
    one = Paired(np.repeat(target, 4, 1), np.repeat(fuzzy, 4, 1))
    assert independent_worth(one, 0.9) == pytest.approx(1.0)
    assert independent_worth(Paired(target, target), 1.0) == 1.0


def test_groups_that_flip_together_are_worth_a_problem_each() -> None:
    """600 groups of 4: three standard errors of either ratio are below .2."""
    rng = np.random.default_rng(10)
    target, fuzzy = rng.random((2, 600, 1)) < 0.8
    groups = np.repeat(np.arange(600), 4)
    together = Paired(np.repeat(target, 4, 0), np.repeat(fuzzy, 4, 0), groups)
    assert independent_worth(together, 0.9) == pytest.approx(0.25)
    target, fuzzy = rng.random((2, 2400, 1)) < 0.8
    assert independent_worth(Paired(target, fuzzy, groups), 0.9) == pytest.approx(1.0, abs=0.2)
