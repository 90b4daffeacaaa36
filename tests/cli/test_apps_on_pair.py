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

from fsd_calib.cli import calibrate as calibrate_app
from fsd_calib.cli import generate as generate_app
from fsd_calib.cli.console import run
from fsd_data import pair_paths
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from support.calibration.profiles import profile

pytestmark = pytest.mark.slow

CALIBRATE = "from fsd_calib.cli.calibrate import main; main()"


def calibrate(*arguments: str) -> int:
    return run(calibrate_app.app, calibrate_app.NAME, arguments)


def generate(*arguments: str) -> int:
    return run(generate_app.app, generate_app.NAME, arguments)


SOON = ["--task", "arithmetic", "--device", "cpu", "--divergence", "js", "--draft-length", "5"]


def test_calibrate_then_generate_on_the_bundled_pair(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    much_faster = ["--divergence", "doubt", "--draft-length", "12"]  # so that a clock which few problems feed says so
    code = calibrate(*SOON, *much_faster, "--limit", "60", "--min-acc", "0.7", "--out", str(tmp_path))
    found = ThresholdProfile.load(tmp_path / "profile.json")
    assert code == (0 if found.met else 3)
    assert found.certificate.wanted == 0.7
    assert f"T = {found.threshold:.4g}" in capsys.readouterr().out
    for point in found.curve:
        assert point.problems <= (found.data.tuning if point.source == "tuning" else found.data.certification)
    chosen = next(p for p in found.curve if p.source == "certification" and p.setting.threshold == found.threshold)
    assert chosen.forecast == found.speed.forecast.chosen
    assert chosen.counts is not None
    assert generate("--profile", str(tmp_path / "profile.json"), "Ann has 3 boxes of 12 pens. How many?") == 0
    assert "####" in capsys.readouterr().out


def test_certify_tests_the_setting_of_a_profile_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = {"task": "arithmetic", "divergence": "js", "threshold": 0.05, "draft_length": 6}
    profile(given).save(tmp_path / "found.json")
    target, draft = map(str, pair_paths())
    options = ["--certify", str(tmp_path / "found.json"), "--target", target, "--draft", draft, "--limit", "60",
               "--min-acc", "0.5", "--timing", "none", "--out", str(tmp_path / "out")]  # fmt: skip
    assert calibrate(*options, "--plan") == 0
    assert "Estimated time" in capsys.readouterr().out
    assert calibrate(*options) == 0
    made = ThresholdProfile.load(tmp_path / "out")
    assert (made.divergence, made.threshold, made.draft_length) == ("js", 0.05, 6)
    assert (made.certificate.wanted, made.certificate.frozen, made.effort and made.effort.trials) == (0.5, 1, 0)
    assert "T = 0.05" in capsys.readouterr().out
    assert calibrate("--config", str(tmp_path / "out" / "run.yaml"), "--quiet", "--json") == 0
    captured = capsys.readouterr()
    (told,) = json.loads(captured.out)["result"]["calibrations"]
    assert captured.err == ""
    assert (told["outcome"], told["met"]) == (made.outcome, True)
    assert told["profile"]["certificate"] == made.certificate.model_dump(mode="json")
    assert ThresholdProfile.load(told["file"]).threshold == 0.05


def test_what_cannot_be_certified_ends_with_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    goal = ["--min-acc", "0.97", "--acc", "absolute", "--confidence", "0.5", "--seed", "3"]
    assert calibrate(*SOON, *goal, "--limit", "60", "--out", str(tmp_path)) == 3
    assert ThresholdProfile.load(tmp_path / "profile.json").threshold is None
    assert "Not certified" in capsys.readouterr().out


def test_too_few_problems_are_said_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert calibrate(*SOON, "--limit", "60", "--min-acc", "0.98", "--out", str(tmp_path)) == 2
    assert "takes at least 154 even if nothing is lost" in capsys.readouterr().err


def test_a_plan_stops_before_the_long_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert calibrate(*SOON, "--limit", "150", "--min-acc", "0.9", "--plan", "--out", str(tmp_path)) == 0
    assert "Estimated time" in capsys.readouterr().out
    assert not (tmp_path / "profile.json").exists()


def test_an_unreachable_speed_ends_with_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert calibrate(*SOON, "--limit", "24", "--min-speed", "1e9", "--out", str(tmp_path)) == 3
    assert "Too slow" in capsys.readouterr().out


@pytest.mark.skipif(os.name == "nt", reason="SIGINT cannot be sent to a child there")
def test_ctrl_c_leaves_what_was_measured(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    arguments = [*SOON, "--min-acc", "0.98", "--out", str(tmp_path / "out"), "--cache", str(cache)]
    child = subprocess.Popen([sys.executable, "-c", CALIBRATE, *arguments], stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 120
        while not any(path.stat().st_size for path in tmp_path.glob("out/*")):
            assert child.poll() is None, "ended before it could be interrupted"
            assert time.monotonic() < deadline, "nothing was written"
            time.sleep(0.1)
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=60)
    finally:
        child.kill()
    assert child.returncode == 130, err
    last = err.splitlines()[-1]
    assert last.startswith(f"fsd-calibrate: interrupted; the decodings in {cache}")
    assert last.endswith("are kept; the same command resumes from there")
    assert "Traceback" not in err
    assert (cache / "decodings.sqlite").stat().st_size
