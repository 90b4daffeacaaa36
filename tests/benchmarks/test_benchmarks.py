"""Smoke runs of the benchmarks, and the bounds that they compute.

Measured speeds are not tested, since other work on the machine changes them.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from beams import Answered, over_sampling
from fsd_data import pair_paths
from fsd_decoding.profile.certificate import OutcomeCounts
from lib.common.forked_programs import run
from lib.common.timing import Run, ratio_of_repeats, speed_up
from support.paths import BENCHMARKS
from with_vllm import standard_error


def test_a_ratio_is_taken_within_a_repeat() -> None:
    slow = [Run(10, 1.0), Run(10, 4.0), Run(10, 2.0)]  # the machine slows down; the fast one stays twice as fast
    fast = [Run(10, run.seconds / 2) for run in slow]
    ratio = speed_up(fast, slow)
    assert (ratio.median, ratio.at_least, ratio.at_most) == (2.0, 2.0, 2.0)


def test_bounds_of_twelve_repeats_hold_about_as_often_as_they_say() -> None:
    # Each holds in about 94 % of cases: of 400, fewer than 340 or all of them do with probability below 1e-8.
    random = np.random.default_rng(5)
    found = [ratio_of_repeats(random.lognormal(0.0, 0.1, 12).tolist()) for _ in range(400)]
    assert 340 <= sum(ratio.at_least <= 1.0 for ratio in found) < 400
    assert 340 <= sum(ratio.at_most >= 1.0 for ratio in found) < 400


def test_standard_error_of_retention_is_that_of_resampled_problems() -> None:
    """That of vLLM's retention, which docs/vllm.md states."""
    outcomes = OutcomeCounts(both_right=1800, lost=60, gained=40, both_wrong=100)
    counts = np.array([outcomes.both_right, outcomes.lost, outcomes.gained, outcomes.both_wrong])
    drawn = np.random.default_rng(0).multinomial(counts.sum(), counts / counts.sum(), 20_000)
    retentions = (drawn[:, 0] + drawn[:, 2]) / (drawn[:, 0] + drawn[:, 1])
    assert standard_error(outcomes) == pytest.approx(retentions.std(), rel=0.03)


def smoke(script: str, folder: Path, *options: str) -> Any:
    """Returns the JSON that a benchmark's smoke run writes."""
    out = folder / "results" / "found.json"
    ran = run(BENCHMARKS / script, "--quick", "--out", str(out), *options)
    assert ran.returncode == 0, ran.stderr
    return json.loads(out.read_text())


@pytest.mark.slow
def test_the_smoke_run_of_collecting_has_a_number_for_every_claim(tmp_path: Path) -> None:
    found = smoke("collect.py", tmp_path, "--threads", "1")
    assert len({claim["name"] for claim in found["claims"]}) == 9
    assert all(0 <= claim["measured"] < math.inf and 0 <= claim["bound"] < math.inf for claim in found["claims"])
    lossless = [one for one in found["predictions"] if (one["rule"], one["temperature"]) == ("sd", 0.0)]
    assert [one["error"] for one in lossless] == [0.0]  # nothing is substituted: replay is exact


@pytest.mark.slow
def test_the_smoke_run_of_seeds_has_a_row_for_every_truth(tmp_path: Path) -> None:
    found = smoke("seeds.py", tmp_path)
    assert [row["truth"] for row in found["simulated"]] == [0.975, 1.0]
    assert [row["problems"] for row in found["bundled"]["rows"]] == [60, 60]
    assert 0 <= found["bundled"]["within"] <= 1


@pytest.mark.slow
def test_the_smoke_run_of_decoding_has_a_number_for_every_claim(tmp_path: Path) -> None:
    found = smoke("decode.py", tmp_path, "--threads", "1")
    claimed = {claim["name"]: claim for claim in found["claims"]}
    assert len(claimed) == 12
    for name, claim in claimed.items():
        assert claim["wanted"], name
        if "compiled" in name:  # compiling takes minutes, so a smoke run leaves it out
            assert claim["measured"] is claim["reached"] is None
        else:
            assert 0 <= claim["measured"] < math.inf
            assert 0 <= claim["bound"] < math.inf
    assert found["machine"]["threads"] == 1
    for contest in found["contests"]:
        assert set(contest["same_texts"].values()) == {contest["prompts"]}  # too short for rounding to change one
        assert contest["rounds"]["sd"]["tokens_a_round"] > 1
        assert len(contest["tokens_per_second"]) == 6


@pytest.mark.slow
def test_the_smoke_run_of_beams_has_a_number_for_every_claim(tmp_path: Path) -> None:
    found = smoke("beams.py", tmp_path)
    assert len({claim["name"] for claim in found["claims"]}) == 7
    assert all(0 <= claim["measured"] < math.inf for claim in found["claims"])
    rounds = {name: facts["tokens_a_round"] for name, facts in found["contenders"].items()}
    assert all((rounds[name] == 1.0) == name.endswith("target") for name in rounds)
    assert set(found["over_sampling"]) == {name for name in rounds if ", " in name}


@pytest.mark.slow
def test_the_smoke_run_of_beams_takes_another_pair(tmp_path: Path) -> None:
    found = smoke("beams.py", tmp_path, "--pair", *map(str, pair_paths()))
    assert found["pair"]["target"]["name"] == pair_paths()[0].name
    assert len({claim["name"] for claim in found["claims"]}) == 5


def test_beams_are_compared_with_as_many_sampled_texts_as_take_as_long() -> None:
    def answered(seconds: float, right: list[bool]) -> Answered:
        return Answered(Run(1, seconds), tuple(right), tuple(right), 1, 1, 1)

    sampled = {
        1: answered(1.0, [False] * 4),
        4: answered(2.0, [True, True, False, False]),
        8: answered(4.0, [True] * 4),
    }
    expected = {0.5: (1, 1.0), 2.0: (4, 0.5), 3.0: (6, 0.25), 9.0: (8, 0.0)}
    for seconds, (texts, gain) in expected.items():
        found = over_sampling(answered(seconds, [True] * 4), sampled)
        value, low, high = found["best"]
        assert (found["texts"], value) == pytest.approx((texts, gain))
        assert low <= value <= high
        assert (low < high) == (seconds in {2.0, 3.0})  # the texts' answers differ there


@pytest.mark.slow
def test_the_smoke_run_of_the_default_command_has_a_number_for_every_claim(tmp_path: Path) -> None:
    found = smoke("command.py", tmp_path)
    assert len({claim["name"] for claim in found["claims"]}) == 4
    assert all(0 <= claim["measured"] < math.inf for claim in found["claims"])
    assert ["--looks=1" in one["options"] for one in found["runs"]] == [False, True]
    for one in found["runs"]:
        assert set(one["seconds"]) == {"preparation", "baseline", "search", "certification", "timing"}
        assert sum(one["seconds"].values()) == pytest.approx(one["total_seconds"], rel=0.5)


@pytest.mark.slow
def test_the_smoke_run_of_the_ceiling_compares_it_with_decoding(tmp_path: Path) -> None:
    found = smoke("ceiling.py", tmp_path)
    assert found["ceiling"] > 1
    value, low, high = found["decoded"]
    assert 0 < low <= value <= high


@pytest.mark.slow
def test_the_smoke_run_of_recurrent_drafts_measures_what_needs_no_further_student(tmp_path: Path) -> None:
    ran = run(BENCHMARKS / "recurrent.py", "--quick", "--out", str(tmp_path))
    assert ran.returncode == 0, ran.stderr
    steps, rollback, bundled = (
        json.loads((tmp_path / f"{part}.json").read_text()) for part in ("steps", "rollback", "bundled")
    )
    for claim in (*steps["claims"], *rollback["claims"]):
        assert 0 < claim["measured"] < math.inf, claim["name"]
    small, large = (at["bytes"] for at in steps["steps"])
    assert small["recurrent-draft"] == large["recurrent-draft"]  # states alone
    assert small["present"] < large["present"]
    assert set(bundled["same_texts"].values()) == {bundled["prompts"]}
