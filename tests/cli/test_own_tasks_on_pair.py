"""Whole calibrations of the bundled pair on a task of one's own in YAML, and on agreement with the target.

Numbers of problems are small; the thresholds found here mean nothing.
"""

from __future__ import annotations

import json
import time
import warnings
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from fsd_calib import ThresholdProfile
from fsd_calib.cli import calibrate as calibrate_app
from fsd_calib.cli import generate as generate_app
from fsd_calib.cli.console import run
from fsd_calib.tasks import load_task
from fsd_calib.tasks.grading import apart
from fsd_data import pair_paths
from fsd_data.problems import generate
from fsd_decoding.loading import load_tokenizer

pytestmark = pytest.mark.slow

TARGET, DRAFT = map(str, pair_paths())
SMALL = [
    "--target",
    TARGET,
    "--draft",
    DRAFT,
    "--device",
    "cpu",
    "--divergence",
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
    rows = [{"asked": problem.question, "solution": problem.answer} for problem in islice(generate(5), 60)]
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
    prompts.write_text("".join(f"{problem.question}\n" for problem in islice(generate(5), 60)))
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
    rows = [{"asked": problem.question, "solution": problem.answer} for problem in islice(generate(5), 60)]
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
