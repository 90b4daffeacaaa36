"""Smoke runs of the benchmarks, and the bounds that they compute.

Measured speeds are not tested, since other work on the machine changes them.
"""

from __future__ import annotations

import json
import math
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsd_calib import TreeShape
from lib.common.forked_programs import run
from lib.common.timing import Run, ratio_of_repeats, speed_up, take_turns
from lib.trees.drafts import Draft
from lib.trees.simulation import SLOPES, simulate
from support.paths import BENCHMARKS


def test_everyone_does_a_piece_before_anyone_does_the_next_in_an_order_drawn_anew() -> None:
    seen: list[tuple[str, int]] = []

    def run(name: str, piece: int) -> Any:
        seen.append((name, piece))
        return Run(piece, 1.0)

    taken = take_turns({name: partial(run, name) for name in "abc"}, [1, 2, 3], 8)
    assert [piece for _, piece in seen] == [1, 1, 1, 2, 2, 2, 3, 3, 3] * 8
    orders = [[name for name, _ in seen[i : i + 3]] for i in range(0, len(seen), 3)]
    assert all(sorted(order) == ["a", "b", "c"] for order in orders)
    assert {order[0] for order in orders} == {"a", "b", "c"}
    assert taken == {name: [Run(6.0, 3.0)] * 8 for name in "abc"}


def test_a_ratio_is_taken_within_a_repeat() -> None:
    slow = [Run(10, 1.0), Run(10, 4.0), Run(10, 2.0)]  # the machine slows down; the fast one stays twice as fast
    fast = [Run(10, run.seconds / 2) for run in slow]
    ratio = speed_up(fast, slow)
    assert (ratio.median, ratio.at_least, ratio.at_most) == (2.0, 2.0, 2.0)


@given(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=15))
def test_the_median_lies_between_its_bounds(ratios: list[float]) -> None:
    ratio = ratio_of_repeats(ratios)
    assert min(ratios) <= ratio.at_least <= ratio.median <= ratio.at_most <= max(ratios)


def test_bounds_of_twelve_repeats_hold_about_as_often_as_they_say() -> None:
    # Each holds in about 94 % of cases: of 400, fewer than 340 or all of them do with probability below 1e-8.
    random = np.random.default_rng(5)
    found = [ratio_of_repeats(random.lognormal(0.0, 0.1, 12).tolist()) for _ in range(400)]
    assert 340 <= sum(ratio.at_least <= 1.0 for ratio in found) < 400
    assert 340 <= sum(ratio.at_most >= 1.0 for ratio in found) < 400


def smoke(script: str, folder: Path) -> Any:
    """Returns the JSON that a benchmark's smoke run writes."""
    out = folder / "results" / "found.json"
    ran = run(BENCHMARKS / script, "--quick", "--threads", "1", "--out", str(out))
    assert ran.returncode == 0, ran.stderr
    return json.loads(out.read_text())


@pytest.mark.slow
def test_the_smoke_run_of_collecting_has_a_number_for_every_claim(tmp_path: Path) -> None:
    found = smoke("collect.py", tmp_path)
    assert len({claim["name"] for claim in found["claims"]}) == 9
    assert all(0 <= claim["measured"] < math.inf and 0 <= claim["bound"] < math.inf for claim in found["claims"])
    lossless = [one for one in found["predictions"] if (one["rule"], one["temperature"]) == ("sd", 0.0)]
    assert [one["error"] for one in lossless] == [0.0]  # nothing is substituted: replay is exact


@pytest.mark.slow
def test_the_smoke_run_of_decoding_has_a_number_for_every_claim(tmp_path: Path) -> None:
    found = smoke("decode.py", tmp_path)
    claimed = {claim["name"]: claim for claim in found["claims"]}
    assert len(claimed) == 18
    for name, claim in claimed.items():
        assert claim["wanted"], name
        if "compiled" in name:  # compiling takes minutes, so a smoke run leaves it out
            assert claim["measured"] is claim["reached"] is None
        else:
            assert 0 <= claim["measured"] < math.inf
            assert 0 <= claim["bound"] < math.inf
    assert found["machine"]["threads"] == 1
    for contest in found["contests"]:
        assert set(contest["same_texts"].values()) == {1.0}  # texts too short for rounding to change one
        assert contest["rounds"]["sd"]["tokens_a_round"] > 1
        assert len(contest["tokens_per_second"]) == 8


@pytest.mark.slow
def test_the_smoke_run_of_workers_has_a_number_for_every_claim(tmp_path: Path) -> None:
    found = smoke("workers.py", tmp_path)
    assert len({claim["name"] for claim in found["claims"]}) == 3
    assert all(0 < claim["measured"] < math.inf for claim in found["claims"])
    assert set(found["speeds"][0]["tokens_per_second"]) == {"1", "2"}
    assert set(found["seconds_per_batch"]) == {"1", "2"}
    assert found["starting"]["first_batch_seconds"]["median"] > found["starting"]["second_batch_seconds"]["median"]


@pytest.mark.slow
def test_the_smoke_run_of_budgets_has_a_number_for_every_claim(tmp_path: Path) -> None:
    found = smoke("budgets.py", tmp_path)
    claimed = {claim["name"]: claim for claim in found["claims"]}
    assert len(claimed) == 20
    assert all(0 <= claim["measured"] < math.inf for claim in claimed.values())
    assert all(one["excess"] <= 1e-12 for one in found["risk"])  # a guarantee, however short the run
    assert all(claim["reached"] for name, claim in claimed.items() if "costs doubled" in name)  # fixed seeds


@pytest.mark.slow
def test_the_smoke_run_of_ngram_orders_has_a_row_for_every_order_and_corpus(tmp_path: Path) -> None:
    found = smoke("ngram_order.py", tmp_path)
    assert [(row["corpus"], row["order"]) for row in found["rows"]] == list(product((0, 4), (2, 3, 4, 6, 8)))
    for row in found["rows"]:
        shares = [row["agreement"]["x_is_not_y"], *row["agreement"]["D_within"].values()]
        assert all(0 <= share <= 1 for share in shares)
        assert all(1 <= tokens <= 6 for tokens in row["tokens_per_round"].values())


@pytest.mark.slow
def test_the_smoke_run_of_trees_compares_the_best_of_both(tmp_path: Path) -> None:
    found = smoke("trees.py", tmp_path)
    assert {best["against"] is None for best in found["best"].values()} == {False}
    assert all(0 < part["share"] < 1 for part in found["overhead"].values())
    lossless = [row for row in found["rows"] if row["T"] is None]
    assert len({row["accuracy"] for row in lossless}) == 1  # texts too short for rounding to change one


def test_trees_are_forecast_to_pay_where_a_draft_step_is_cheap_and_reading_is_free() -> None:
    chain, tree = Draft(4), Draft(4, TreeShape(2, 8))
    cells = simulate({chain: 3.0, tree: 3.6})
    assert max(cell.ratio for cell in cells) == pytest.approx(1.2)
    free = {cell.step: cell.ratio for cell in cells if cell.slope == 0}
    dear = {cell.step: cell.ratio for cell in cells if cell.slope == max(SLOPES)}
    assert all(free[step] > dear[step] for step in free)
    assert simulate({chain: 3.0}) == []
