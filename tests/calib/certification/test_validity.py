"""Simulations of whole calibrations: how often a certificate is false, and that the measure rejects invalid tests.

Every share is compared with delta plus three standard errors: were the true share delta itself, a cell would raise a
false alarm with probability .0014, the 72 worlds together with .1 at most; seeds are fixed.
"""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom

from fsd_calib.certification import betting_test
from fsd_calib.certification.certificate import certify_sequence
from fsd_calib.certification.claim import Claim
from fsd_calib.certification.looks import Looks
from fsd_calib.certification.multi_seed import fitted_p_values
from fsd_calib.certification.outcomes import Paired
from fsd_calib.certification.score_test import p_values
from fsd_decoding.profile.certificate import OutcomeCounts
from lib.validity.sizes import Counts, Law, law, retention
from lib.validity.worlds import THRESHOLDS, WANTED, World, freeze, in_sequence, p_of
from support.calibration.paired_gradings import Prefixes, paired

DELTA = 0.05
RUNS = 4000
WORLDS = [
    World(*cell)
    for cell in product(("flat", "linear", "cliff", "s", "bump", "leak"), (100, 250, 500, 1319), (0.0, 0.03, 0.1))
]


def allowed(delta: float, runs: int) -> float:
    return delta + 3 * math.sqrt(delta * (1 - delta) / runs)


def attempt(number: int) -> float:
    """Returns the significance level of an attempt; the levels of all attempts sum to delta at most."""
    return DELTA * 6 / (math.pi * number) ** 2


def fixed_sequence(counts: Counts, order: Counts, delta: float) -> NDArray[np.bool_]:
    """Tests thresholds in sequence on the counts of one part."""
    return in_sequence(p_of(np.take_along_axis(counts, order[..., None], 1)), delta)


def naive(counts: Counts) -> tuple[NDArray[np.bool_], Counts]:
    """Picks the loosest threshold whose estimate is high enough, on the same problems and without a test.

    Returns whether there is one and which, (number, 1) each.
    """
    good = counts[..., 0] + counts[..., 2] >= WANTED * (counts[..., 0] + counts[..., 1])
    return np.asarray(good.any(1, keepdims=True)), len(THRESHOLDS) - 1 - good[:, ::-1].argmax(1)[:, None]


@pytest.mark.slow
def test_the_simulated_sequence_matches_certify_sequence() -> None:
    world, rng = World("linear", 500, 0.03), np.random.default_rng(3)
    order = freeze(world.draw(40, rng), DELTA)
    counts = world.draw(40, rng)
    passed = fixed_sequence(counts, order, DELTA)
    found = set()
    for rows, frozen, expected in zip(counts, order, passed, strict=True):
        candidates = ([paired(OutcomeCounts(*map(int, rows[i])))] for i in frozen)
        verdict = certify_sequence(candidates, Claim(WANTED), DELTA)
        assert (0 if verdict.passed is None else verdict.passed + 1) == expected.sum()
        found.add(verdict.passed)
    assert len(found) > 2


@pytest.mark.slow
def test_false_certificates_keep_the_level() -> None:
    rng, shares, looks_good, granted = np.random.default_rng(4), [], [], []
    for world in WORLDS:
        order = freeze(world.draw(RUNS, rng), DELTA)
        counts = world.draw(RUNS, rng)
        passed = fixed_sequence(counts, order, DELTA)
        shares.append(world.false(passed, order).mean())
        looks_good.append(world.false(*naive(counts)).mean())
        granted.append(passed.any(1).mean())
        assert shares[-1] <= allowed(DELTA, RUNS), world
    assert max(shares) > DELTA / 2  # some worlds come close to the level
    assert max(granted) > 0.9  # the test does certify
    # The largest threshold that looks good on the tuning part fails the same measure nearly everywhere, except where
    # the curve is steep and there are many problems.
    assert np.mean(np.array(looks_good) > allowed(DELTA, RUNS)) > 0.8
    assert max(looks_good) > 0.5


def family_share(world: World, arms: list[Counts], orders: list[Counts], levels: tuple[float, float]) -> float:
    """Returns how often either of two attempts is false.

    The second is made where the first passes nothing, at thresholds no looser than the safest that failed.
    """
    first = fixed_sequence(arms[0], orders[0], levels[0])
    failed = ~first.any(1, keepdims=True)
    careful = np.where(failed, np.minimum(orders[1], orders[0][:, :1]), orders[1])
    second = fixed_sequence(arms[1], careful, levels[1]) & failed
    return float((world.false(first, orders[0]) | world.false(second, careful)).mean())


@pytest.mark.slow
@pytest.mark.parametrize("same", [True, False])
def test_two_attempts_keep_the_level_together(same: bool) -> None:
    """The second sequence is chosen once the first has failed.

    It tests the same arm, or another one with independent outcomes, so that the error probabilities add up.
    """
    rng, kept, unkept = np.random.default_rng(5), 0.0, 0.0
    for world in WORLDS:
        orders = [freeze(world.draw(RUNS, rng), DELTA) for _ in range(2)]
        arms = [world.draw(RUNS, rng)]
        arms += [arms[0] if same else world.draw(RUNS, rng)]
        kept = max(kept, family_share(world, arms, orders, (attempt(1), attempt(2))))
        unkept = max(unkept, family_share(world, arms, orders, (DELTA, DELTA)))
    assert DELTA / 3 < kept <= allowed(DELTA, RUNS)
    # At the full level, two attempts with independent outcomes err too often.
    assert same or unkept > allowed(DELTA, RUNS)


# Populations (table of one problem) whose retention is the wanted one or slightly less; churn up to .1.
def seeded(k: int, lost: float, churn: float) -> Law:
    """Returns populations with losses in problems of medium difficulty and in easy ones; seeds of a problem agree."""
    return law(k, [(0.6, 1.0, lost, 0.0), (0.3, 2 / 3, lost + churn, churn), (0.1, 0.0, 0.0, churn)])


def solved(drawn: Counts, k: int) -> tuple[Law, Law]:
    """Returns what target and fuzzy rule solved, from the cells of the table."""
    return drawn // (k + 1) / k, drawn % (k + 1) / k


@pytest.mark.slow
@pytest.mark.parametrize("k", [1, 3])
def test_several_seeds_and_betting_keep_the_level(k: int) -> None:
    """2,000 calibrations per cell, where any certificate is false; betting may stop after each problem."""
    rng, runs, rejected = np.random.default_rng(10 + k), 2000, []
    for problems, lost, churn in product((100, 300), (0.02, 0.05), (0.0, 0.03, 0.1)):
        table = seeded(k, lost, churn)
        wanted = retention(table)
        drawn = rng.choice(table.size, p=table.ravel(), size=(runs, problems))
        target, fuzzy = solved(drawn, k)
        bets = betting_test.p_values(target, fuzzy, wanted)
        tables = np.stack([np.bincount(row, minlength=table.size).reshape(table.shape) for row in drawn])
        if k == 1:
            scores = p_values(tables[:, 1, 1], tables[:, 1, 0], tables[:, 0, 1], tables[:, 0, 0], wanted)
        else:
            scores = np.where((target != fuzzy).sum(1) < 5, bets, fitted_p_values(tables, wanted))
        for p in (bets, scores):
            assert (p <= DELTA).mean() <= allowed(DELTA, runs), (problems, lost, churn)
            rejected.append((p <= DELTA).mean())
    assert max(rejected) > DELTA / 2


@pytest.mark.slow
@pytest.mark.parametrize("k", [1, 3])
def test_absolute_claims_keep_the_level(k: int) -> None:
    rng, runs, rejected = np.random.default_rng(20 + k), 2000, []
    for problems, lost in product((100, 300), (0.0, 0.05)):
        table = seeded(k, lost, 0.05)
        right = table.sum(0)
        wanted = float(right @ np.arange(k + 1)) / k
        drawn = rng.multinomial(problems, right, size=runs)
        tables = np.zeros((runs, k + 1, k + 1), np.int64)
        tables[:, k] = drawn  # beside a target that is always right
        p = fitted_p_values(tables, wanted) if k > 1 else p_values(drawn[:, 1], drawn[:, 0], 0, 0, wanted)
        assert (p <= DELTA).mean() <= allowed(DELTA, runs), (problems, lost)
        if k == 1:
            exact = binom.sf(drawn[:, 1] - 1, problems, wanted)
            assert p == pytest.approx(exact)
        rejected.append((p <= DELTA).mean())
    assert max(rejected) > DELTA / 2


@pytest.mark.slow
def test_dataset_claims_keep_the_level_at_any_stopping_time() -> None:
    """Datasets that retain slightly too little, in 2,000 orders, tested after each of the first 80 % of problems."""
    rng, runs = np.random.default_rng(30), 2000
    for whole, lost, gained in product((200, 500), (0.02, 0.04, 0.08), (0, 5, 20)):
        lose = round(lost * 0.8 * whole) + gained
        kind = np.repeat(np.arange(4), [round(0.8 * whole) - lose, lose, gained, whole - round(0.8 * whole) - gained])
        target, fuzzy = (kind <= 1).astype(float), (kind % 2 == 0).astype(float)
        wanted = (fuzzy.sum() + 0.01) / target.sum()
        orders = rng.permuted(np.tile(np.arange(whole), (runs, 1)), axis=1)[:, : int(0.8 * whole)]
        p = betting_test.p_values(target[orders], fuzzy[orders], wanted, whole)
        assert (p <= DELTA).mean() <= allowed(DELTA, runs), (whole, lost, gained)
        assert betting_test.p_values(target, fuzzy, wanted, whole) == 1.0


THIRDS = Looks.evenly(300, 3)


@pytest.mark.slow
@pytest.mark.parametrize("claim", [Claim(WANTED, looks=THIRDS), Claim(0.784, "absolute", looks=THIRDS)])
def test_looks_keep_the_level(claim: Claim) -> None:
    """`certify_sequence` itself, on 400 calibrations, with early acceptance and giving up."""
    rng, runs, false = np.random.default_rng(40), 400, 0
    for _ in range(runs):
        kind = rng.choice(4, p=[0.768, 0.032, 0.016, 0.184], size=300)  # retains exactly .98 of .8
        whole = Paired((kind <= 1)[:, None], (kind % 2 == 0)[:, None])
        false += certify_sequence([Prefixes(whole, (100, 200))], claim, DELTA).passed is not None
    assert false / runs <= allowed(DELTA, runs)
