"""Scores, rules and drafters of users in commands and files: where they are looked for, and what is said of them."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fsd_calib.calibration.run_file import read_run_file
from fsd_calib.cli import calibrate as calibrate_app
from fsd_calib.cli import collect as collect_app
from fsd_calib.cli import generate as generate_app
from fsd_calib.cli import inspect as inspect_app
from fsd_calib.cli import traces as traces_app
from fsd_calib.cli.console import run
from fsd_common.errors import UsageError
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from support.messages import error_line
from support.models.tiny_pair import related
from support.models.tiny_task import tiny_task
from support.paths import EXAMPLES
from support.traces.collecting import collect

NUMBERS = itertools.count()
QUESTION = "Mia bakes 4 trays of 6 pies a tray. Mia sells 10 of them. How many pies does Mia have now?"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The example's score, in a module of a name of its own beside where commands are run."""
    name = f"score_in_folder_{next(NUMBERS)}"
    (tmp_path / f"{name}.py").write_text((EXAMPLES / "new_score.py").read_text(encoding="utf-8"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    yield name
    sys.modules.pop(name, None)


def test_a_run_file_takes_what_is_beside_it(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run.yaml").write_text(f"task: arithmetic\ndecoding:\n  score: [{module}:Behind@3, js]\n")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert read_run_file(tmp_path / "run.yaml").decoding.given == {"score": (f"{module}:Behind@3", "js")}
    (tmp_path / "elsewhere" / "run.yaml").write_text("task: arithmetic\ndecoding: {rule: 'not_beside:Rule'}\n")
    with pytest.raises(
        UsageError, match=r"run file .*: key 'decoding.rule.0' is .*there is no module not_beside on Python's"
    ):
        read_run_file(tmp_path / "elsewhere" / "run.yaml")


TASK = ["--task", "arithmetic"]
ASKED = [*TASK, "--min-acc", "0.9"]


@pytest.mark.parametrize(
    ("app", "arguments", "complaint"),
    [
        (calibrate_app, [*ASKED, "--score", "nowhere:X"], "score 'nowhere:X': there is no module nowhere on Python's"),
        (calibrate_app, [*ASKED, "--rule", "nowhere:X"], "rule 'nowhere:X': there is no module nowhere on Python's"),
        (calibrate_app, [*ASKED, "--drafter", "x:Y"], "drafter 'x:Y': there is no module x on Python's path, nor in "),
        (calibrate_app, [*ASKED, "--drafter", "tree"], "one of model, eagle, ngram, auto, or your own as module:Name"),
        (calibrate_app, [*ASKED, "--stop-policy", "x"], "--stop-policy is 'x'; it must be your own as module:Name"),
        (inspect_app, ["--score", "a:X", "hi"], "score 'a:X': there is no module a on Python's path, nor in "),
        (inspect_app, ["--drafter", "lookup", "hi"], "--drafter is 'lookup'; it must be your own as module:Name"),
        (inspect_app, ["--drafter", "json:X", "hi"], "drafter 'json:X' is of Python's own module json; put it in "),
        (inspect_app, ["--drafter", "a:b", "--head", "c", "hi"], "--head and --drafter are both given"),
        (collect_app, [*TASK, "--log-probs", "0"], "--log-probs is 0; it must be a whole number of at least 1"),
    ],
)
def test_what_is_not_there_is_one_line(
    app: object, arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(app.app, app.NAME, arguments) == 2  # type: ignore[attr-defined]
    assert complaint in error_line(capsys)


def test_traces_are_described_with_a_score_of_ones_own(
    module: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "lists"
    collect(folder, related(seed=1, spread=0.05), tiny_task(6), scores=("js",), log_probs=8)
    assert run(traces_app.app, traces_app.NAME, ["describe", str(folder), "--score", f"{module}:Behind@8,tv"]) == 0
    shown = capsys.readouterr()
    assert f"js, {module}:Behind@8, tv" in " ".join(shown.out.split())
    assert shown.err.startswith("fsd-traces: tv: an approximation, by the 8 likeliest tokens of each model; ")
    assert run(traces_app.app, traces_app.NAME, ["describe", str(folder), "--score", "poetry"]) == 2
    assert "--score is 'poetry'; it must be one of js, " in error_line(capsys)
    collect(tmp_path / "none", related(seed=1, spread=0.05), tiny_task(6))
    assert run(traces_app.app, traces_app.NAME, ["plot", str(tmp_path / "none"), "--score", "margin"]) == 2
    assert "hold no log-probabilities, of which margin could be computed; collect again" in error_line(capsys)


@pytest.mark.slow
def test_a_score_in_the_folder_is_shown_calibrated_and_followed(
    module: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    score = f"{module}:Behind@10"
    assert run(inspect_app.app, inspect_app.NAME, ["--score", score, "--threshold", "1.5", QUESTION]) == 0
    assert f"D is {score}, L = 5" in capsys.readouterr().out
    asked = ["--task", "arithmetic", "--limit", "100", "--min-acc", "0.7", "--score", score, "--draft-length", "8",
             "--timing", "none", "--workers", "2", "--out", "made"]  # fmt: skip
    assert run(calibrate_app.app, calibrate_app.NAME, asked) == 0
    assert f"PYTHONPATH={tmp_path} fsd-generate --profile made/profile.json" in capsys.readouterr().out
    assert f"score: {score}\n" in (tmp_path / "made" / "run.yaml").read_text(encoding="utf-8")
    made = ThresholdProfile.load("made")
    assert made.threshold is not None
    assert [each.name for each in made.addons] == [f"{module}:Behind"]
    assert run(generate_app.app, generate_app.NAME, ["--profile", "made", QUESTION]) == 0
    assert f"drafted tokens with {score} <= " in capsys.readouterr().err
    other = made.model_copy(update={"addons": tuple(replace(each, source="0" * 64) for each in made.addons)})
    other.sealed().save(tmp_path / "other.json")
    assert run(generate_app.app, generate_app.NAME, ["--profile", "other.json", QUESTION]) == 2
    assert f"was made with another source of score '{module}:Behind'" in error_line(capsys)
