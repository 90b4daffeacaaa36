"""P-values from paired outcomes and their bound. For few flips see test_exact_test.py, for the size
test_guarantee.py."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.stats import binom, norm

from fsd_calib.certification.score_test import lower_bound, p_value, p_values
from fsd_common.errors import UsageError
from fsd_decoding.profile.certificate import OutcomeCounts

EXAMPLE = OutcomeCounts(1020, 40, 35, 224)

small, large = st.integers(0, 12), st.integers(0, 3000)
counts = st.one_of(small, large)
tables = st.builds(OutcomeCounts, counts, counts, counts, counts).filter(lambda o: o.both_right + o.lost > 0)
ratios = st.floats(0.01, 3.0)
levels = st.floats(0.001, 0.5)


def test_outcomes_count_pairs() -> None:
    outcomes = OutcomeCounts.of([True, True, False, False, True], [True, False, True, False, True])
    assert outcomes == OutcomeCounts(both_right=2, lost=1, gained=1, both_wrong=1)
    assert outcomes.total == 5
    assert outcomes.retention == 1.0
    assert outcomes.churn == 0.4


@pytest.mark.parametrize("kind", [list, tuple, np.array])
def test_outcomes_take_any_sequence(kind: type) -> None:
    assert OutcomeCounts.of(kind([True, False]), kind([True, True])) == OutcomeCounts(1, 0, 1, 0)


def test_outcomes_need_grades_of_equal_length() -> None:
    with pytest.raises(ValueError, match="zip"):
        OutcomeCounts.of([True], [True, False])
    with pytest.raises(ValueError, match="negative"):
        OutcomeCounts(1, -1, 0, 0)


def test_a_target_that_solves_nothing_leaves_retention_undefined() -> None:
    nothing = OutcomeCounts(0, 0, 3, 7)
    asks: tuple[Callable[[], float], ...] = (
        lambda: nothing.retention,
        lambda: p_value(nothing, 0.98),
        lambda: lower_bound(nothing, 0.05),
    )
    for ask in asks:
        with pytest.raises(UsageError, match="none of 10 problems, so retention is undefined"):
            ask()
    assert p_values(0, 0, 30, 7, 0.98) == 1.0  # elementwise, no error is raised


@pytest.mark.parametrize("wanted", [0.0, -1.0, math.inf, math.nan])
def test_a_wanted_retention_must_be_positive(wanted: float) -> None:
    with pytest.raises(UsageError, match="wanted retention"):
        p_value(EXAMPLE, wanted)


@pytest.mark.parametrize("delta", [0.0, 1.0, 5.0, math.nan])
def test_a_level_must_lie_between_0_and_1(delta: float) -> None:
    with pytest.raises(UsageError, match="delta"):
        lower_bound(EXAMPLE, delta)


def test_a_documented_example() -> None:
    assert EXAMPLE.retention == pytest.approx(0.9953, abs=5e-5)
    assert lower_bound(EXAMPLE, 0.05) == pytest.approx(0.9817, abs=5e-5)


@given(tables, ratios)
def test_a_p_value_is_a_probability(outcomes: OutcomeCounts, wanted: float) -> None:
    assert 0.0 <= p_value(outcomes, wanted) <= 1.0


@given(tables, ratios, ratios)
def test_p_rises_with_what_is_wanted(outcomes: OutcomeCounts, one: float, other: float) -> None:
    low, high = sorted([one, other])
    assert p_value(outcomes, low) <= p_value(outcomes, high) + 1e-9


@given(tables, st.floats(0.5, 0.999))
def test_p_rises_with_losses(outcomes: OutcomeCounts, wanted: float) -> None:
    better = replace(outcomes, both_right=outcomes.both_right + 1)
    worse = replace(outcomes, lost=outcomes.lost + 1)
    assert p_value(better, wanted) <= p_value(worse, wanted) + 1e-9


@pytest.mark.slow
@given(tables, levels)
def test_the_bound_is_where_the_p_value_crosses(outcomes: OutcomeCounts, delta: float) -> None:
    bound = lower_bound(outcomes, delta)
    assert 0.0 <= bound <= max(outcomes.retention, 1e-9) * (1 + 1e-9)
    assert p_value(outcomes, bound + 1e-7) > delta
    if bound > 1e-6:
        assert p_value(outcomes, bound * (1 - 1e-7)) <= delta


@pytest.mark.slow
@given(tables, levels, levels)
def test_a_stricter_level_gives_a_lower_bound(outcomes: OutcomeCounts, one: float, other: float) -> None:
    low, high = sorted([one, other])
    assert lower_bound(outcomes, low) <= lower_bound(outcomes, high) + 1e-12


def test_no_flips_at_all_need_149_problems_for_98_percent() -> None:
    assert lower_bound(OutcomeCounts(148, 0, 0, 50), 0.05) < 0.98 < lower_bound(OutcomeCounts(149, 0, 0, 0), 0.05)


def likelihood_at(outcomes: OutcomeCounts, wanted: float, p_lost: float, solved: float) -> float:
    """Returns minus the log-likelihood of a population with retention `wanted`, for any P(lost)."""
    gained = (p_lost - (1 - wanted) * solved) / wanted
    shares = (solved - p_lost - gained, p_lost, gained)
    counts = (outcomes.both_right, outcomes.lost, outcomes.gained)
    if min(shares) < 0:
        return math.inf
    return -sum(n * math.log(p) if p > 0 else -math.inf for n, p in zip(counts, shares, strict=True) if n)


def fitted_p_value(outcomes: OutcomeCounts, wanted: float) -> float:
    """Returns p of the score test with a numerical fit in place of the quadratic equation."""
    n, solved = outcomes.total, 1 - outcomes.both_wrong / outcomes.total
    low, high = max((1 - wanted) * solved, 0.0), solved / (1 + wanted)
    fit = minimize_scalar(
        lambda x: likelihood_at(outcomes, wanted, x, solved),
        bounds=(low, high), method="bounded", options={"xatol": 1e-13},
    )  # fmt: skip
    lost, gained = fit.x, (fit.x - (1 - wanted) * solved) / wanted
    variance = n * ((solved - lost - gained) * (1 - wanted) ** 2 + lost * wanted**2 + gained)
    excess = outcomes.both_right + outcomes.gained - wanted * (outcomes.both_right + outcomes.lost)
    return float(norm.sf(excess / math.sqrt(variance)))


def test_the_score_test_agrees_with_a_numerical_fit() -> None:
    """200 random tables; no false alarms, since both are computed from the same counts."""
    rng, compared = np.random.default_rng(1), 0
    while compared < 200:
        outcomes = OutcomeCounts(*map(int, rng.multinomial(rng.integers(20, 3000), rng.dirichlet([8, 1, 1, 3]))))
        wanted = float(rng.uniform(0.7, 1.0))
        if outcomes.gained >= 12:  # below that the exact test may have the larger p
            assert p_value(outcomes, wanted) == pytest.approx(fitted_p_value(outcomes, wanted), abs=1e-6)
            compared += 1


@given(st.integers(1, 300), st.integers(0, 300), st.floats(0.01, 0.99))
def test_a_target_that_is_always_right_leaves_the_binomial_test(kept: int, lost: int, wanted: float) -> None:
    assert p_value(OutcomeCounts(kept, lost, 0, 0), wanted) == pytest.approx(binom.cdf(lost, kept + lost, 1 - wanted))
