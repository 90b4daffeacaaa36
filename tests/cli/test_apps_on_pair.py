"""Whole commands on the bundled pair, on bundled tasks and on a user's own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from fsd_calib.cli import calibrate as calibrate_app
from fsd_calib.cli import generate as generate_app
from fsd_calib.cli.console import run
from fsd_calib.tasks import load_task
from fsd_calib.tasks.grading import apart
from fsd_data import pair_paths
from fsd_data import problems as made_up
from fsd_decoding.loading import load_tokenizer
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from support.calibration.profiles import profile

pytestmark = pytest.mark.slow

CALIBRATE = "from fsd_calib.cli.calibrate import main; main()"


def calibrate(*arguments: str) -> int:
    return run(calibrate_app.app, calibrate_app.NAME, arguments)


def generate(*arguments: str) -> int:
    return run(generate_app.app, generate_app.NAME, arguments)


SOON = ["--task", "arithmetic", "--device", "cpu", "--score", "js", "--draft-length", "5"]


def test_calibrate_then_generate_on_the_bundled_pair(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    much_faster = ["--score", "doubt", "--draft-length", "12"]  # so that a clock which few problems feed says so
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
    given = {"task": "arithmetic", "score": "js", "threshold": 0.05, "draft_length": 6}
    profile(given).save(tmp_path / "found.json")
    target, draft = map(str, pair_paths())
    options = ["--certify", str(tmp_path / "found.json"), "--target", target, "--draft", draft, "--limit", "60",
               "--min-acc", "0.5", "--timing", "none", "--out", str(tmp_path / "out")]  # fmt: skip
    assert calibrate(*options, "--plan") == 0
    assert "Estimated time" in capsys.readouterr().out
    assert calibrate(*options) == 0
    made = ThresholdProfile.load(tmp_path / "out")
    assert (made.score, made.threshold, made.draft_length) == ("js", 0.05, 6)
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
    assert "takes at least 162 even if nothing is lost" in capsys.readouterr().err


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


TARGET, DRAFT = map(str, pair_paths())
SMALL = [
    "--target",
    TARGET,
    "--draft",
    DRAFT,
    "--device",
    "cpu",
    "--score",
    "js",
    "--draft-length",
    "5",
    "--timing",
    "none",
]
DESCRIPTION = """
data: problems.jsonl
columns: {question: asked, answer: solution}
prompt: "Question: {{ asked }}\\nAnswer:"
grader: numeric
max_new_tokens: 160
"""


def test_a_task_in_yaml_is_calibrated_and_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"asked": problem.question, "solution": problem.answer} for problem in islice(made_up.generate(5), 60)]
    Path("problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("sums.yaml").write_text(DESCRIPTION)
    code = run(calibrate_app.app, calibrate_app.NAME, ["--task", "sums.yaml", "--min-acc", "0.6", *SMALL])
    made = ThresholdProfile.load("fsd-profile/sums")
    assert code == (0 if made.met else 3)
    assert (made.task, made.data.source, made.data.tuning + made.data.certification) == (
        "sums.yaml",
        "problems.jsonl",
        60,
    )
    assert made.accuracy.target is not None
    assert made.accuracy.target > 0.8  # a task of the pair, asked as it was trained
    assert made.prompt is not None
    assert made.prompt.specification == DESCRIPTION
    assert load_task("sums.yaml", tokenizer=load_tokenizer(TARGET)).prompt == made.prompt
    Path("sums.yaml").unlink()
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")

    def followed(*options: str) -> tuple[str, str]:
        capsys.readouterr()
        asked = ["--profile", "../fsd-profile/sums", *options, rows[0]["asked"]]
        assert run(generate_app.app, generate_app.NAME, asked) == 0
        shown = capsys.readouterr()
        return shown.out, shown.err

    said, _ = followed()
    assert "####" in said
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        shown, _ = followed("--json", "--raw", "--max-new-tokens", "5")
    assert json.loads(shown)["result"]["texts"][0]["rendered"] == rows[0]["asked"]
    otherwise = "prompts are not made as in the calibration, max_new_tokens is 5 instead of 160: the certificate"
    assert made.threshold is None or any(str(each.message).startswith(otherwise) for each in told)


def test_agreement_is_calibrated_and_its_report_says_what_it_claims(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("".join(f"{problem.question}\n" for problem in islice(made_up.generate(5), 60)))
    options = ["--task", "agreement:0.5", "--data", str(prompts), "--min-acc", "0.3", "--out", str(tmp_path / "out")]
    code = run(calibrate_app.app, calibrate_app.NAME, [*options, *SMALL])
    made, said = ThresholdProfile.load(tmp_path / "out"), " ".join(capsys.readouterr().out.split())
    assert code == (0 if made.met else 3)
    assert (made.task, made.accuracy.target) == ("agreement:0.5", 1.0)
    assert "to the target's own text for at least 30% of prompts" in said
    assert "stricter than, and different from, accuracy" in said or not made.certificate.problems


NUMBERS = """
from fsd_calib.tasks.grading.numbers import same_answer
def same(reference, text):
    if text.rstrip().endswith("7"):
        raise ValueError("I do not like sevens")
    return same_answer(reference, text)
"""


def test_texts_that_break_a_grader_end_no_calibration_and_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The graders' process takes at most 5 % of the time, though it is a short calibration."""
    monkeypatch.chdir(tmp_path)
    rows = [{"asked": problem.question, "solution": problem.answer} for problem in islice(made_up.generate(5), 60)]
    Path("problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("sums.yaml").write_text(DESCRIPTION.replace("numeric", "python\nfunction: no_sevens.same"))
    Path("no_sevens.py").write_text(NUMBERS)
    seconds, ask = [], apart._PROCESS.ask

    def timed(*request: Any) -> Any:
        began = time.monotonic()
        try:
            return ask(*request)
        finally:
            seconds.append(time.monotonic() - began)

    monkeypatch.setattr(apart._PROCESS, "ask", timed)
    monkeypatch.setattr(apart, "_broken", [])
    began = time.monotonic()
    with pytest.warns(UserWarning, match="a text broke its grader .ValueError: I do not like sevens. and counts as"):
        code = run(calibrate_app.app, calibrate_app.NAME, ["--task", "sums.yaml", "--min-acc", "0.6", *SMALL])
    assert code in (0, 3)
    assert sum(seconds) <= 0.05 * (time.monotonic() - began) + 2  # the start of the process, on a busy machine
    assert "texts that broke the grader, and count as wrong: " in capsys.readouterr().err
