"""The benchmark that compares the search with an oracle."""

from __future__ import annotations

import pytest

from regret import TUNING, WANTED, Arena, real_arenas, report, synthetic_arenas


@pytest.fixture(scope="module")
def arena() -> Arena:
    (arena,) = real_arenas().values()
    return arena(0)


@pytest.mark.slow
def test_parts_share_no_problem_and_the_truth_is_the_half_that_was_never_tuned_on(arena: Arena) -> None:
    decode, tuning, certify, truth = arena.draw_parts(3, 754)
    certified_on = {decode.copies[problem.id].id for problem in certify}
    assert len(tuning) == TUNING[754]
    assert len({problem.id for problem in certify}) == 754
    assert certified_on <= {arena.pool.problems[i].id for i in truth.numbers.tolist()}
    assert not certified_on & {problem.id for problem in tuning}


@pytest.mark.slow
def test_runs_come_close_to_the_oracle_and_decode_little(arena: Arena) -> None:
    """Four on the real pool and one on a made-up one. The seeds are fixed, so there is no false alarm."""
    (real,) = report({"bundled pair": lambda seed: arena}, (754,), WANTED[:1], 4)
    (made_up,) = report({"dip": synthetic_arenas()["dip"]}, (754,), WANTED[:1], 1)
    assert 0.9 < real["of_the_oracle"]["median"] <= 1.01
    assert 0 < made_up["of_the_oracle"]["median"] <= 1.01
    for found in (real, made_up):
        assert found["decoded"] < 0.25
        assert found["false"] <= 0.25
