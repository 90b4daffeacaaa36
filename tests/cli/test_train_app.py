"""`fsd-train-predictor` as a shell sees it: its output and what it leaves behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fsd_calib.cli import train_predictor as train_app
from fsd_calib.cli.console import run
from fsd_predictors.models.registry import MODELS
from fsd_predictors.predictor import Predictor
from support.messages import error_line
from support.traces.tiny_traces import TOKENIZER, tiny_traces

TRAIN = [sys.executable, "-c", "from fsd_calib.cli.train_predictor import main; main()"]


def train(*arguments: str) -> int:
    return run(train_app.app, train_app.NAME, arguments)


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Traces, and the tokenizer that they do not say the place of, since their models have none."""
    folder = tmp_path_factory.mktemp("given")
    tiny_traces(folder / "traces")
    TOKENIZER.save_pretrained(folder / "tokenizer")
    return ["--traces", str(folder / "traces"), "--tokenizer", str(folder / "tokenizer"), "--trials", "1"]


def test_help_tells_options_defaults_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("--help") == 0
    text = " ".join(re.sub(r"[│╭╮╰╯─]", " ", capsys.readouterr().out).split())
    for expected in ("--traces", "--out", "--kind", "--rule", "fsd-coupled", "--score", "--trials", "card.md",
                     "0 done", "2 bad input", "130 interrupted", *MODELS):  # fmt: skip
        assert expected in text


@pytest.mark.slow
def test_a_predictor_and_its_card(given: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "predictor"
    assert train(*given, "--out", str(out), "--score", "js, tv") == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[-1] == f"{out} holds the predictor; see {out / 'card.md'}"
    for expected in ("Quality by T", "AUC", "of q(x)", "js", "tv"):
        assert expected in captured.out
    assert Predictor.load(out).facts.scores == ("js", "tv")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--trials", "0"], "--trials is 0; it must be a whole number of at least 1"),
        (["--limit", "0"], "--limit is 0"),
        (["--limit", "49"], "hold 49 problems of the tuning part within --limit; a predictor needs at least 50"),
        (["--kind", "oracle"], "--kind is 'oracle'; it must be one of boosted, logistic, head"),
        (["--rule", "poetry"], "--rule is 'poetry'; it must be one of fsd, fsd-sd, fsd-coupled"),
        (["--rule", "coupled"], "--rule is 'coupled'; it must be one of fsd, fsd-sd, fsd-coupled"),
        (["--score", "doubt"], "hold no score 'doubt', only js, tv"),
        (["--score", "js,,tv"], "--score is 'js,,tv'"),
        (["--tokenizer", "./no/such/folder"], "is not a local folder"),
        (["--traces", "./no/such/folder"], "manifest.json cannot be read"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], complaint: str, given: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(*given, "--out", str(tmp_path), *arguments) == 2
    line = error_line(capsys)
    assert line.startswith("fsd-train-predictor: error: ")
    assert complaint in line
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_said_at_once(
    given: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert train(*given, "--out", str(tmp_path / "file" / "out")) == 2
    assert "cannot be written: Not a directory; choose another folder" in error_line(capsys)


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="SIGINT cannot be sent to a child there")
def test_ctrl_c_leaves_the_earlier_predictor(given: list[str], tmp_path: Path) -> None:
    assert train(*given, "--out", str(tmp_path)) == 0
    before = Predictor.load(tmp_path).fingerprint
    child = subprocess.Popen(
        [*TRAIN, *given, "--trials", "1000", "--seed", "1", "--out", str(tmp_path)], stderr=subprocess.PIPE, text=True
    )
    try:
        assert child.stderr is not None
        child.stderr.readline()  # it has begun
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=60)
    finally:
        child.kill()
    assert child.returncode == 130, err
    assert (
        err.splitlines()[-1]
        == f"fsd-train-predictor: interrupted; nothing is kept: {tmp_path} holds no new predictor, "
        "and the same command begins anew"
    )
    assert "Traceback" not in err
    assert Predictor.load(tmp_path).fingerprint == before
