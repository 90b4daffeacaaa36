"""The score test with several seeds: with one seed it is the known formula, and its size with seeds that agree."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, brentq, minimize
from scipy.stats import norm

from fsd_calib.certification import betting_test
from fsd_calib.certification.multi_seed import fitted_p_values, p_value
from fsd_calib.certification.outcomes import Paired
from fsd_calib.certification.score_test import p_value as one_seed
from fsd_decoding.profile.certificate import OutcomeCounts
from lib.validity.sizes import Law, law, retention

Table = NDArray[np.int64]

counts = st.one_of(st.integers(0, 12), st.integers(0, 3000))


@pytest.mark.slow
@given(counts, counts, counts, counts, st.floats(0.3, 2.0))
def test_with_one_seed_it_is_the_score_test(n11: int, n10: int, n01: int, n00: int, wanted: float) -> None:
    outcomes = OutcomeCounts(n11, n10, n01, n00)
    if n11 + n10 and n01 >= 12:  # below that the exact test may have the larger p
        table = np.array([[n00, n01], [n10, n11]])
        assert fitted_p_values(table, wanted) == pytest.approx(one_seed(outcomes, wanted), abs=1e-9)


def numerically(table: Table, wanted: float) -> float:
    """Returns the p-value computed with a general optimiser over all cells."""
    k = len(table) - 1
    solved = np.arange(k + 1) / k
    z, n = (solved - wanted * solved[:, None]).ravel(), table.ravel() / table.sum()

    def tilted(by: float) -> Law:
        return np.asarray((n + 1 / len(n)) * np.exp(by * z) / ((n + 1 / len(n)) @ np.exp(by * z)), np.float64)

    start = tilted(float(brentq(lambda by: float(tilted(by) @ z), -50, 50)))  # satisfies the constraints

    def surprise(p: Law) -> float:
        return -float(n @ np.log(p))

    def slope(p: Law) -> Law:
        return np.asarray(-n / p, np.float64)

    fit = minimize(
        surprise, start, jac=slope, method="SLSQP",
        bounds=Bounds(np.full(len(z), 1e-9), np.ones(len(z))),
        constraints=LinearConstraint(np.stack([np.ones(len(z)), z]), [1, 0], [1, 0]),
        options={"maxiter": 1000, "ftol": 1e-13},
    )  # fmt: skip
    assert fit.success
    statistic = n @ z * math.sqrt(table.sum() / (fit.x @ z**2))
    skewness = max(float(fit.x @ z**3 / (fit.x @ z**2) ** 1.5), 0.0) / math.sqrt(table.sum())
    return float(norm.sf(statistic) + norm.pdf(statistic) * skewness * (max(statistic, 1.0) ** 2 - 1) / 6)


def test_the_fit_is_the_most_likely_law() -> None:
    """Includes tables with empty cells, where the best fit has mass in cells that were not observed."""
    rng = np.random.default_rng(1)
    for k, gains_only in product((1, 2, 3), (False, True) * 10):
        table = rng.multinomial(rng.integers(50, 500), rng.dirichlet(np.full((k + 1) ** 2, 0.4)))
        table = table.reshape(k + 1, k + 1) + np.eye(k + 1, dtype=np.int64) * 20
        table = np.triu(table) if gains_only else table  # then the best fit has losses that were not observed
        wanted = float(rng.uniform(0.6, 1.0))
        assert fitted_p_values(table, wanted) == pytest.approx(numerically(table, wanted), abs=2e-4)


def test_few_flips_are_tested_by_betting() -> None:
    target = np.ones((400, 3), bool)
    fuzzy = target.copy()
    fuzzy[[3, 50, 70, 99], 1] = False
    sample = Paired(target, fuzzy)
    assert p_value(sample, 0.98) == betting_test.p_values(target.mean(1), fuzzy.mean(1), 0.98)
    fuzzy[200, 2] = False
    sample = Paired(target, fuzzy)
    assert p_value(sample, 0.98) == fitted_p_values(sample.table, 0.98)


def populations(k: int, problems: int, flips: float) -> list[tuple[Law, float]]:
    """Returns laws with losses spread evenly, or all in one seventh of the problems, with all seeds or with some."""
    won = flips / 2 / problems / 0.3
    laws = [law(k, [(0.55, 1.0, x, won), (0.3, 0.5, x, won), (0.15, 0.0, x, won)]) for x in (0.02, 0.06)]
    for agreeing in (1.0, 0.4):
        share = (0.01 + flips / problems) / agreeing
        laws += [law(k, [(share, 1.0, agreeing, 0), (0.7 - share, 1.0, 0, 0), (0.3, 0.0, 0, won)])]
    return [(table, retention(table)) for table in laws]


@pytest.mark.slow
@pytest.mark.parametrize("k", [3, 5])
def test_the_size_with_seeds_that_agree(k: int) -> None:
    """48 populations whose retention is what is wanted, 4,000 draws: 1.25 delta and three standard errors, where
    20,000 draws of 265 such populations found at most 1.11 delta. The seed is fixed (else false alarms below .01)."""
    rng, runs = np.random.default_rng(k), 4000
    for problems, flips in product((80, 150, 400), (6, 15)):
        for table, wanted in populations(k, problems, flips):
            drawn = rng.multinomial(problems, table.ravel() / table.sum(), size=runs).reshape(runs, k + 1, k + 1)
            few = problems - np.trace(drawn, axis1=1, axis2=2) < 5
            rejected = (fitted_p_values(drawn, wanted) <= 0.05) & ~few
            assert rejected.mean() <= 1.25 * 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs), (problems, flips, wanted)


@pytest.mark.thinned(every=2)
@pytest.mark.parametrize("agreeing", [False, True])
def test_gains_in_few_problems_keep_the_level(agreeing: bool) -> None:
    """The target solves 98 % of 660 problems with all of 4 seeds and the others never; it loses 1.5 % of all, seed by
    seed, and gains as much from the few others, seed by seed or with all at once. Without the skewness .0101 and
    .0117 of 40,000 draws have p <= .0076. False alarm: .0013 for each of four, were the size exhausted."""
    gains = [(0.015, 0.0, 0, 1.0), (0.005, 0.0, 0, 0)] if agreeing else [(0.02, 0.0, 0, 0.75)]
    table, runs = law(4, [(0.98, 1.0, 0.015 / 0.98, 0), *gains]), 40_000
    drawn = np.random.default_rng(4).multinomial(660, table.ravel() / table.sum(), size=runs).reshape(runs, 5, 5)
    p = fitted_p_values(drawn, retention(table))
    for level in (0.0304, 0.0076):
        assert 0.8 * level < (p <= level).mean() <= level + 3 * math.sqrt(level * (1 - level) / runs)


@pytest.mark.slow
def test_counting_seeds_as_problems_exceeds_the_level() -> None:
    """Five seeds that agree, counted as five problems, give many times the level."""
    rng, table = np.random.default_rng(3), law(5, [(0.04, 1.0, 1.0, 0), (0.66, 1.0, 0, 0), (0.3, 0.0, 0, 0.05)])
    wanted, rejected = retention(table), 0
    for _ in range(300):
        cells = rng.multinomial(200, table.ravel() / table.sum()).reshape(6, 6)
        both = sum(int(n) * min(a, b) for (a, b), n in np.ndenumerate(cells))
        target, fuzzy = int(cells.sum(1) @ np.arange(6)), int(cells.sum(0) @ np.arange(6))
        pairs = OutcomeCounts(both, target - both, fuzzy - both, 1000 - target - fuzzy + both)
        rejected += one_seed(pairs, wanted) <= 0.05
    assert rejected > 0.1 * 300
