"""A calibration on a task of lm-evaluation-harness, whole, on the bundled pair; the threshold found means nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsd_calib.cli import calibrate as calibrate_app
from fsd_calib.cli.console import run
from fsd_data import pair_paths
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from support.calibration.harness_tasks import write_task
from support.messages import error_line


def calibrate(*arguments: str) -> int:
    target, draft = map(str, pair_paths())
    return run(calibrate_app.app, calibrate_app.NAME, ["--target", target, "--draft", draft, *arguments])


@pytest.mark.slow
def test_a_task_of_lm_eval_is_calibrated_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_task(tmp_path, count=20, train=12)
    soon = ["--device", "cpu", "--divergence", "js", "--draft-length", "5", "--min-acc", "0.5", "--confidence", "0.6",
            "--timing", "none", "--workers", "1", "--limit", "32", "--out", str(tmp_path / "out")]  # fmt: skip
    code = calibrate("--task", f"lm-eval:{path}", *soon)
    found = ThresholdProfile.load(tmp_path / "out")
    assert code == (0 if found.met else 3)
    assert found.task == f"lm-eval:{path}"
    assert (found.data.tuning, found.data.certification) == (12, 20)
    assert "exact_match after strict-match" in found.data.source
    assert "T = " in capsys.readouterr().out


def test_a_task_that_compares_probabilities_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    choice = {"output_type": "multiple_choice", "doc_to_choice": ["1", "2"], "doc_to_target": 0, "metric_list": None}
    path = write_task(tmp_path, changes=choice)
    assert calibrate("--task", f"lm-eval:{path}", "--min-acc", "0.9") == 2
    assert "output type is multiple_choice" in error_line(capsys)
