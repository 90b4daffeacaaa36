"""The smoke run of `benchmarks/busy.py`, and what it concludes from runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import busy
from lib.common.forked_programs import run
from support.paths import BENCHMARKS


def found(seed: int = 0, beside: int = 0, **changes: Any) -> dict[str, Any]:
    """What a run found that certified something 1.5 times as fast."""
    usual = {
        "seed": seed, "busy": beside, "seconds": 100.0, "outcome": "certified-faster", "p": 0.001, "level": 0.03,
        "divergence": "js", "threshold": 0.2, "draft_length": 8, "sd_draft_length": 4, "over_sd": [1.3, 1.7],
        "threads": 1, "true_over_sd": 1.5, "logit_share": 3.0,
    }  # fmt: skip
    return usual | changes


def unreached(*beside_two: dict[str, Any], quiet: tuple[float, float] = (2.5, 3.5)) -> set[str]:
    """The claims that fail of two quiet runs, and those beside two processes."""
    runs = [found(seed, logit_share=share) for seed, share in enumerate(quiet)]
    return {claim.name.removeprefix("beside 2: ") for claim in busy.claims([*runs, *beside_two]) if not claim.reached}


def test_a_run_like_the_quiet_one_reaches_every_claim() -> None:
    assert unreached(found(beside=2)) == set()
    assert unreached(found(beside=2, outcome="certified-speed-unknown", seconds=250.0)) == set()
    assert unreached(found(beside=2, outcome="certified-slower", true_over_sd=0.9)) == set()


@pytest.mark.parametrize(
    ("changes", "claim"),
    [
        ({"outcome": "certified-slower"}, "wrong verdicts on speed"),
        ({"true_over_sd": 0.9}, "wrong verdicts on speed"),
        ({"outcome": "not-certified", "logit_share": None, "true_over_sd": None},
         "verdicts on accuracy unlike the quiet run's"),
        ({"logit_share": 4.3}, "T outside the quiet seeds' spread"),
        ({"seconds": 251.0}, "time over the quiet run's, the largest"),
    ],
)  # fmt: skip
def test_a_run_that_differs_misses_the_claim_in_question(changes: dict[str, Any], claim: str) -> None:
    assert unreached(found(beside=2, **changes)) == {claim}


@pytest.mark.slow
def test_the_smoke_run_goes_on_after_the_runs_that_are_kept(tmp_path: Path) -> None:
    """The quiet run is one of them, so only the other one is made."""
    out, runs = tmp_path / "results.json", tmp_path / "runs"
    runs.mkdir()
    (runs / "0-0.json").write_text(json.dumps({**found(), "true_over_sd": None, "logit_share": None}))
    ran = run(BENCHMARKS / "busy.py", "--quick", "--busy", "1", "--runs", str(runs), "--out", str(out))
    assert ran.returncode == 0, ran.stderr
    results = json.loads(out.read_text())
    made = {one["busy"]: one for one in results["runs"]}
    assert made.keys() == {0, 1}
    assert made[0]["seconds"] == 100.0
    assert made[0]["true_over_sd"] > 0
    assert json.loads((runs / "1-0.json").read_text())["seconds"] == made[1]["seconds"]
    assert {claim["name"].partition(": ")[0] for claim in results["claims"]} == {"beside 0", "beside 1"}
