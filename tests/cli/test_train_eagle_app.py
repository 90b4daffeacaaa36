"""`fsd-train-eagle` as a shell sees it: its output and what it leaves behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fsd_calib.cli import train_eagle as train_app
from fsd_calib.cli.console import run
from fsd_calib.tasks.registry import load_task
from fsd_calib.tasks.split import tuning_of
from fsd_data import pair_paths
from fsd_decoding.drafters.eagle import Eagle
from fsd_decoding.loading import load_model, load_tokenizer
from support.messages import error_line

TRAIN = [sys.executable, "-c", "from fsd_calib.cli.train_eagle import main; main()"]
QUICK = ["--task", "arithmetic", "--limit", "60", "--epochs", "1"]


def train(*arguments: str) -> int:
    return run(train_app.app, train_app.NAME, arguments)


def test_help_tells_options_defaults_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("--help-all") == 0
    text = " ".join(capsys.readouterr().out.split())
    for expected in ("--target", "--task", "--out", "--layers", "--vocabulary", "--epochs", "--steps", "card.md",
                     "0 done", "2 bad input", "of fewer than 6 layers", "130 interrupted"):  # fmt: skip
        assert expected in text


@pytest.mark.slow
def test_a_head_and_its_card(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "head"
    assert train(*QUICK, "--out", str(out)) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[-1] == f"{out} holds the head; see {out / 'card.md'}"
    for expected in ("agreement 3", "tokens per round", "tree 5 deep, 16 nodes"):
        assert expected in captured.out
    assert (out / "card.md").read_text().startswith("# EAGLE-3 head for ")
    target = str(pair_paths()[0])
    tuning = tuning_of(load_task("arithmetic", 0, 60, tokenizer=load_tokenizer(target)))
    assert Eagle(out).load(load_model(target, "cpu", None)).trained_on == frozenset().union(
        *(problem.keys for problem in tuning)
    )


@pytest.mark.slow
def test_json_is_the_only_thing_on_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(*QUICK, "--out", str(tmp_path), "--json", "--quiet", "--layers", "1,3", "--vocabulary", "300") == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    result = json.loads(captured.out)["result"]
    assert result["folder"] == str(tmp_path)
    assert result["recipe"]["layers"] == [1, 3]
    assert len(result["history"]) == 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--epochs", "0"], "--epochs is 0; it must be a whole number of at least 1"),
        (["--steps", "0"], "--steps is 0; it must be a whole number of at least 1"),
        (["--vocabulary", "0"], "--vocabulary is 0; it must be a whole number of at least 1"),
        (["--vocabulary", "980"], "--vocabulary is 980; the target has 979 tokens"),
        (["--layers", "2,x"], "--layers is '2,x'; give numbers, separated by commas, such as 2,7,11"),
        (["--layers", "2,,3"], "--layers is '2,,3'"),
        (["--layers", "2,14"], "--layers is '2,14'; the target's are numbered from 0 to 13"),
        (["--learning-rate", "0"], "--learning-rate is 0.0; it must be a number between 0 and 1"),
        (["--limit", "1"], "a head needs at least 2"),
        (["--task", "poetry"], "unknown task 'poetry'"),
        (["--target", "./no/such/folder"], "is not a local folder"),
        (["--device", "abacus"], "--device is 'abacus'; it must be cpu, cuda or"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(*QUICK, "--out", str(tmp_path), "--quiet", *arguments) == 2
    line = error_line(capsys)
    assert line.startswith("fsd-train-eagle: error: ")
    assert complaint in line


@pytest.mark.parametrize("arguments", [["--target", "./no/such/folder"], ["--data", "no-such-file.jsonl"]])
def test_what_is_not_found_leaves_no_folder(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(*QUICK, "--out", str(tmp_path / "head"), "--quiet", *arguments) == 2
    error_line(capsys)
    assert not (tmp_path / "head").exists()


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert train(*QUICK, "--out", str(tmp_path / "file" / "head"), "--quiet") == 2
    assert f"--out {str(tmp_path / 'file' / 'head')!r} cannot be written" in error_line(capsys)


@pytest.mark.slow
def test_ctrl_c_tells_how_to_go_on(tmp_path: Path) -> None:
    process = subprocess.Popen([*TRAIN, *QUICK, "--epochs", "1000", "--out", str(tmp_path)], stderr=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True)  # fmt: skip
    deadline = time.monotonic() + 120
    while not (tmp_path / "unfinished" / "checkpoint.pt").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.splitlines()[-1] == (
        f"fsd-train-eagle: interrupted; {tmp_path} keeps the texts and epochs so far; the same command continues there"
    )
    assert (tmp_path / "unfinished" / "texts.jsonl").exists()
