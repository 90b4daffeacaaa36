"""`fsd-profile export`: what a shell makes of the text, what goes to stderr, and the exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fsd_calib.cli import profile as profile_app
from fsd_calib.cli.console import run
from support.calibration.profiles import UNTESTED, profile
from support.messages import error_line

ACCEPT = {
    "rule": "fsd-sd", "score": "accept-threshold", "threshold": 0.25, "logits": "processed",
    "sampling": {"temperature": 1.0, "top_k": None, "top_p": None}, "draft.id": "it's small",
}  # fmt: skip


def app(*arguments: str | Path) -> int:
    return run(profile_app.app, profile_app.NAME, ["export", *map(str, arguments)])


def test_what_is_printed_runs_in_a_shell_as_it_stands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile(ACCEPT).save(tmp_path / "profile.json")
    assert app(tmp_path, "--to", "sglang") == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    program = tmp_path / "bin" / "python"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n")
    program.chmod(0o755)
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    ran = subprocess.run(["sh", "-c", printed.out], env={"PATH": path}, capture_output=True, text=True, check=True)
    arguments = json.loads(ran.stdout)
    assert arguments[:2] == ["-m", "sglang.launch_server"]
    assert arguments[arguments.index("--speculative-draft-model-path") + 1] == "it's small"
    assert arguments[-4:] == [
        "--speculative-accept-threshold-single",
        "0.75",
        "--speculative-accept-threshold-acc",
        "1.0",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "max"], "the profile's score is 'accept-threshold', and MAX has relaxed alone"),
        (["--to", "llama.cpp"], "unknown engine 'llama.cpp'; known: vllm, sglang, tensorrt-llm, max, transformers"),
        ([], "Missing option '--to'"),
    ],
)
def test_what_cannot_be_exported_is_bad_input_in_one_line(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile(ACCEPT).save(tmp_path / "profile.json")
    assert app(tmp_path, *arguments) == 2
    assert message in error_line(capsys)


def test_doubts_are_warnings_and_what_was_edited_needs_leave(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile(ACCEPT | UNTESTED).model_copy(update={"seed": 5}).save(tmp_path / "profile.json")
    assert app(tmp_path, "--to", "sglang") == 2
    assert "was changed after the calibration that wrote it" in error_line(capsys)
    assert app(tmp_path, "--to", "sglang", "--allow-edited") == 0
    edited, untested = capsys.readouterr().err.splitlines()
    assert "was edited" in edited
    assert "was never tested" in untested
