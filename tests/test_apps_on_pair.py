"""Both commands, whole, on the bundled pair: from a calibration to texts, and every way it may end.

Numbers of problems are small; the thresholds found here mean nothing.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fsd_calib import calibrate_app, generate_app
from fsd_calib.command_line import run
from fsd_calib.tasks import load_task
from fsd_collectors.split import tuning_and_certification
from fsd_decoding.profile import ThresholdProfile

pytestmark = pytest.mark.slow

CALIBRATE = "from fsd_calib.calibrate_app import main; main()"


def calibrate(*arguments: str) -> int:
    return run(calibrate_app.app, calibrate_app.NAME, arguments)


def generate(*arguments: str) -> int:
    return run(generate_app.app, generate_app.NAME, arguments)


def test_calibrate_then_generate_on_the_bundled_pair(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["--task", "arithmetic", "--limit", "150", "--device", "cpu"]
    code = calibrate(*common, "--min-acc", "0.5", "--out", str(tmp_path))
    found = ThresholdProfile.load(tmp_path / "profile.json")
    assert code == (0 if found.met else 3)
    assert found.certificate.wanted == 0.5
    assert f"T = {found.threshold:.4g}" in capsys.readouterr().out
    _journal_agrees(tmp_path / "decodings.jsonl", found)
    assert generate("--profile", str(tmp_path / "profile.json"), "Ann has 3 boxes of 12 pens. How many?") == 0
    assert "####" in capsys.readouterr().out


def _journal_agrees(path: Path, found: ThresholdProfile) -> None:
    """The search saw the tuning part only; every point of the curve is what was decoded on its part."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    parts = [row["part"] for row in rows]
    assert parts == sorted(parts, reverse=True)  # all tuning, then all certification
    problems = load_task("arithmetic", limit=150).problems
    tuning, certification = ({p.id for p in part} for part in tuning_and_certification(problems))
    assert {row["problem"] for row in rows if row["part"] == "tuning"} == tuning
    assert {row["problem"] for row in rows if row["part"] == "certification"} == certification
    for point in found.curve:
        decoded = [
            r for r in rows if (r["rule"], r["threshold"], r["part"]) == (point.rule, point.threshold, point.source)
        ]
        assert len(decoded) == point.problems
        assert sum(row["correct"] for row in decoded) / len(decoded) == pytest.approx(point.accuracy)
    chosen = next(p for p in found.curve if p.source == "certification" and p.threshold == found.threshold)
    assert chosen.tokens_per_second == pytest.approx(found.speed.chosen)
    assert chosen.counts is not None


def test_a_modest_speed_needs_no_loss(tmp_path: Path) -> None:
    common = ["--task", "arithmetic", "--limit", "40", "--device", "cpu", "--out", str(tmp_path)]
    assert calibrate(*common, "--min-speed", "1") == 0
    found = ThresholdProfile.load(tmp_path / "profile.json")
    assert found.threshold == 0
    assert found.certificate.lost == 0


def test_what_cannot_be_certified_ends_with_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["--task", "arithmetic", "--limit", "40", "--device", "cpu", "--out", str(tmp_path)]
    assert calibrate(*common, "--min-acc", "1.2") == 3  # the target solves 9 of 10: there is no room for it
    assert ThresholdProfile.load(tmp_path / "profile.json").threshold is None
    assert "Not certified" in capsys.readouterr().out


def test_an_unreachable_speed_ends_with_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["--task", "arithmetic", "--limit", "40", "--device", "cpu", "--out", str(tmp_path)]
    assert calibrate(*common, "--min-speed", "1e9") == 3
    assert "not reached" in " ".join(capsys.readouterr().out.split())


@pytest.mark.skipif(os.name == "nt", reason="SIGINT cannot be sent to a child there")
def test_ctrl_c_leaves_what_was_measured(tmp_path: Path) -> None:
    arguments = ["--task", "arithmetic", "--min-acc", "0.98", "--device", "cpu", "--out", str(tmp_path)]
    child = subprocess.Popen([sys.executable, "-c", CALIBRATE, *arguments], stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 120
        while not any(path.stat().st_size for path in tmp_path.iterdir()):
            assert child.poll() is None, "ended before it could be interrupted"
            assert time.monotonic() < deadline, "nothing was written"
            time.sleep(0.1)
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=60)
    finally:
        child.kill()
    assert child.returncode == 130
    last = err.splitlines()[-1]
    assert last.startswith(f"fsd-calibrate: interrupted; {tmp_path} holds what was measured: ")
    assert "Traceback" not in err
    measured = [path for path in tmp_path.iterdir() if path.name in last]
    assert any(path.stat().st_size for path in measured)
