"""The script for GPUs walks its paths on a CPU: every number is there. What it measures only a GPU can say."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from support.paths import BENCHMARKS

SCRIPT = BENCHMARKS / "gpu.py"

pytest.importorskip("triton", reason="kernels are written in Triton, which is not installed")


@pytest.mark.slow
def test_the_dry_run_has_a_number_for_every_claim(tmp_path: Path) -> None:
    out = tmp_path / "results" / "gpu.json"
    ran = subprocess.run([sys.executable, str(SCRIPT), "--dry-run", "--out", str(out)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(out.read_text())
    assert len(found["claims"]) == 45
    assert all(math.isfinite(claim["measured"]) for claim in found["claims"])
    for one in found["kernels"]:
        assert max(one["errors"].values()) < 3e-6
        assert one["choices"] == 1
    assert {one["equal"] for one in found["equality"]} == {1}
    high, low = found["rounds"]["rounds"][:2]
    assert (high["chance"], low["chance"]) == (0.8, 0.4)
    assert high["tokens_a_round"] > low["tokens_a_round"] > 1


def test_without_a_gpu_it_says_what_to_do() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    ran = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True)
    assert ran.returncode == 2
    assert "there is no GPU here; --dry-run walks every path on a CPU" in ran.stderr
