"""The benchmark that compares the search with an oracle, and the testing procedures that another one compares."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fsd_calib.engines.configuration import Configuration
from procedures import PROCEDURES
from regret import TUNING, WANTED, Arena, real_arenas, summarise

ARMS = [Configuration("fsd-coupled", "js", length, 0.1) for length in (3, 5, 8)]


@pytest.fixture(scope="module")
def arena() -> Arena:
    (arena,) = real_arenas().values()
    return arena(0)


@pytest.mark.slow
def test_parts_share_no_problem_and_the_truth_is_the_half_that_was_never_tuned_on(arena: Arena) -> None:
    decode, tuning, certify, truth = arena.draw_parts(3, 660)
    certified_on = {decode.copies[problem.id].id for problem in certify}
    assert len(tuning) == TUNING[660]
    assert len({problem.id for problem in certify}) == 660
    assert certified_on <= {arena.pool.problems[i].id for i in truth.numbers.tolist()}
    assert not certified_on & {problem.id for problem in tuning}


def test_two_seeds_use_the_same_halves_the_other_way_round(arena: Arena) -> None:
    one, other = (arena.draw_parts(seed, 660)[3] for seed in (4, 5))
    assert not set(one.numbers.tolist()) & set(other.numbers.tolist())


@pytest.mark.slow
def test_a_run_comes_close_to_the_oracle_and_decodes_little(arena: Arena) -> None:
    """The seeds are fixed, so there is no false alarm."""
    found = summarise([arena.run(WANTED[0], 660, seed) for seed in range(4)])
    assert 0.9 < found["of_the_oracle"]["median"] <= 1.01
    assert found["decoded"] < 0.2
    assert found["false"] <= 0.25


class Case:
    """Settings with p-values of their own, as `procedures.Case` has them."""

    def __init__(self, ps: dict[Configuration, float], ladders: dict[str | None, list[Configuration]]) -> None:
        self.ps, self.ladders = ps, ladders
        self.arena = SimpleNamespace(space=SimpleNamespace(divergences=("doubt", "js")))

    def ladder(self, delta: float, divergence: str | None = None, worth: float = 1.0) -> list[Configuration]:
        return self.ladders.get(divergence, [])

    def passes(self, configuration: Configuration, delta: float, test: str = "score") -> bool:
        return self.ps[configuration] <= delta


def certified(name: str, ps: list[float]) -> list[int]:
    """Which of three settings, in their order, a procedure certifies at .04."""
    ladders: dict[str | None, list[Configuration]] = {None: ARMS, "doubt": ARMS[:1], "js": ARMS[1:]}
    case: Any = Case(dict(zip(ARMS, ps, strict=True)), ladders)
    return sorted(ARMS.index(c) for c in PROCEDURES[name](case, 0.04))


def test_each_procedure_spends_its_level_as_it_says() -> None:
    assert certified("fixed sequence", [0.03, 0.03, 0.05]) == [0, 1]
    assert certified("fixed sequence", [0.05, 0.0, 0.0]) == []
    assert certified("fallback", [0.05, 0.01, 0.02]) == [1, 2]
    assert certified("Holm", [0.05, 0.01, 0.015]) == [1, 2]
    assert certified("two chains", [0.01, 0.03, 0.03]) == [0, 1, 2]  # the first chain hands its half on
    assert certified("two chains", [0.03, 0.03, 0.03]) == []
    assert certified("two starts", [0.05, 0.02, 0.02]) == [1, 2]


@pytest.mark.parametrize("name", PROCEDURES)
def test_a_procedure_keeps_its_promise_where_nothing_may_be_certified(name: str) -> None:
    """2,000 draws of independent p-values: .04 may be false, more than 106 with probability .0015."""
    random = np.random.default_rng(5)
    wrong = sum(bool(certified(name, random.random(3).tolist())) for _ in range(2_000))
    assert wrong <= 0.04 * 2_000 + 3 * (0.04 * 0.96 * 2_000) ** 0.5
