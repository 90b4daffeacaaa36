"""The attacks run, each of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lib.common import forked_programs
from support.paths import BENCHMARKS


@pytest.mark.slow
def test_the_smoke_run_reports_every_attack(tmp_path: Path) -> None:
    out = tmp_path / "attacks.json"
    ran = forked_programs.run(BENCHMARKS / "attacks.py", "--quick", "--out", str(out))
    found = json.loads(out.read_text())
    assert len(found) == 7
    assert all(attack["counts"] for attack in found.values())
    assert (ran.returncode, [attack["faults"] for attack in found.values()]) == (0, [[]] * 7), ran.stderr
