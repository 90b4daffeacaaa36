"""The dry run of benchmarks/gpu.py on a CPU, with only the packages that the script needs."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from support.paths import BENCHMARKS

SCRIPT = BENCHMARKS / "gpu.py"
NOT_NEEDED = ("optuna", "lightgbm", "pandas", "datasets")  # a machine with a GPU need not have them
BLOCKING = f"import sys; sys.modules.update(dict.fromkeys({NOT_NEEDED}))"  # a module that is None raises ImportError

pytest.importorskip("triton", reason="kernels are written in Triton, which is not installed")


def run(*options: str) -> subprocess.CompletedProcess[str]:
    """Runs the script where packages that it does not need cannot be imported."""
    code = f"{BLOCKING}; sys.argv = {[str(SCRIPT), *options]}; import runpy; sys.path.insert(0, {str(BENCHMARKS)!r})"
    program = f"{code}; runpy.run_path({str(SCRIPT)!r}, run_name='__main__'); import fsd_data.train"  # left out dry
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)


@pytest.mark.slow
def test_the_dry_run_has_a_number_for_every_claim(tmp_path: Path) -> None:
    out = tmp_path / "results" / "gpu.json"
    ran = run("--dry-run", "--out", str(out))
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
    ran = run()
    assert ran.returncode == 2
    assert "torch finds no GPU on this machine; use --dry-run to try every part on a CPU" in ran.stderr
