"""Choices, oracle and intervals of the benchmark of threshold policies; no speeds are tested."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from lib.common.forked_programs import run
from lib.common.paired_contest import Array, Timed
from lib.policies.choice import difference, fastest, oracle
from support.paths import BENCHMARKS

ALONE = np.array([1, 1, 1, 0], bool)


def timed(seconds: list[float], right: list[int]) -> Timed:
    return Timed(np.full(len(seconds), 10), np.array(seconds), np.array(right, bool))


SAFE, FAST = timed([4, 4, 4, 4], [1, 1, 1, 0]), timed([2, 3, 1, 2], [1, 0, 0, 0])


def test_the_fastest_is_chosen_of_those_that_keep_enough_or_else_most() -> None:
    both = [("safe", SAFE), ("fast", FAST)]
    assert fastest(both, ALONE, 1.0) == "safe"
    assert fastest(both, ALONE, 0.3) == "fast"
    assert fastest([("fast", FAST)], ALONE, 1.0) == "fast"


def test_the_oracle_is_fast_where_that_is_right_or_nothing_is_to_lose() -> None:
    assert oracle([SAFE, FAST], 0).seconds.tolist() == [2, 4, 4, 2]
    assert oracle([SAFE, FAST], 0).right.tolist() == [True, True, True, False]


def test_what_it_may_lose_it_gives_up_where_that_saves_most() -> None:
    assert oracle([SAFE, FAST], 1).seconds.tolist() == [2, 4, 1, 2]
    assert oracle([SAFE, FAST], 2).seconds.tolist() == [2, 3, 1, 2]


@pytest.mark.slow
def test_intervals_of_a_difference_hold_about_as_often_as_they_say() -> None:
    # Each holds the truth, 0, in some 93 % of cases: of 100, fewer than 78 do with probability below 1e-6.
    random, alone = np.random.default_rng(3), np.ones(300, bool)

    def kept() -> Array:
        return random.random(300) < 0.95

    found = [difference(kept(), kept(), alone) for _ in range(100)]
    assert sum(one.low <= 0.0 <= one.high for one in found) >= 78
    assert 0.04 < np.median([one.high - one.low for one in found]) < 0.1


@pytest.mark.slow
def test_the_smoke_run_compares_a_policy_with_a_constant_and_an_oracle(tmp_path: Path) -> None:
    out = tmp_path / "results" / "adaptive.json"
    ran = run(BENCHMARKS / "adaptive.py", "--quick", "--out", str(out))
    assert ran.returncode == 0, ran.stderr
    (found,) = json.loads(out.read_text())["comparisons"]
    assert found["best"] == "entropy"
    assert found["oracle"]["tokens_per_second"] >= found["constant"]["tokens_per_second"]
    assert found["families"]["entropy"]["gain"]["low"] <= found["families"]["entropy"]["gain"]["gain"]
    assert found["clock"]["tokens_per_second"].keys() == {"constant", "adaptive"}
