"""The smoke run of `benchmarks/busy.py`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lib.common.forked_programs import run
from support.paths import BENCHMARKS

QUIET = {
    "seed": 0, "busy": 0, "seconds": 100.0, "outcome": "certified-faster", "p": 0.001, "level": 0.03,
    "score": "js", "threshold": 0.2, "draft_length": 8, "sd_draft_length": 4, "over_lossless": [1.3, 1.7],
    "threads": 1, "true_over_lossless": None, "logit_share": None,
}  # fmt: skip
"""What a run found that certified something 1.5 times as fast."""


@pytest.mark.slow
def test_the_smoke_run_goes_on_after_the_runs_that_are_kept(tmp_path: Path) -> None:
    """The quiet run is one of them, so only the other one is made."""
    out, runs = tmp_path / "results.json", tmp_path / "runs"
    runs.mkdir()
    (runs / "0-0.json").write_text(json.dumps(QUIET))
    ran = run(BENCHMARKS / "busy.py", "--quick", "--busy", "1", "--runs", str(runs), "--out", str(out))
    assert ran.returncode == 0, ran.stderr
    results = json.loads(out.read_text())
    made = {one["busy"]: one for one in results["runs"]}
    assert made.keys() == {0, 1}
    assert made[0]["seconds"] == 100.0
    assert made[0]["true_over_lossless"] > 0
    assert json.loads((runs / "1-0.json").read_text())["seconds"] == made[1]["seconds"]
    assert {claim["name"].partition(": ")[0] for claim in results["claims"]} == {"beside 0", "beside 1"}
