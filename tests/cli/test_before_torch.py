"""Mistakes that show without torch are refused before it is loaded, which takes seconds, by every command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

MISTAKES = {
    "calibrate": [
        "--task none.yaml", "--task bad.yaml", "{} --config none.yaml", "{} --config bad.yaml", "{} --out file",
        "{} --cache file/cache", "{} --state file", "{} --device foo", "{} --device cuda:x", "{} --dtype foo",
        "{} --data none.jsonl", "{} --data folder", "{} --data bad.jsonl", "{} --data bad.json", "{} --data utf16.csv",
        "{} --target ./none --draft ./none", "{} --target folder --draft folder", "{} --target a//b --draft c",
        "{} --head /none/head", "{} --certify none.json", "{} --compile foo", "{} --timing foo", "{} --rule foo",
        "{} --show-prompt --target file", "{} --engine foo",
        "{} --storage sqlite:///", "{} --storage file/study.log", "{} --predictor none", "{} --predictor folder",
        "{} --ray foo:1", "--task lm-eval:none.yaml --min-acc 0.9", "{} --engine vllm --tree 2,6",
        '{} --speculative-config {{"method":"eagle3","model":"h"}}', "{} --engine vllm --speculative-config a",
        "--task gsm8k --min-acc 0.9 --data other.csv", "--task other.yaml --min-acc 0.9", "{} --score a:B",
        "{} --rule a:B", "{} --drafter a:B", "{} --stop-policy a:B", "{} --score os:path",
        "{} --beams 4 --engine vllm", "{} --beams 4 --engine fsd-calib,vllm", "{} --beams 4 --tree 2,6",
        "{} --beams 4 --drafter ngram", "{} --beams 4 --drafter auto", "{} --beams 4 --target a/b --head c/d",
        "{} --beams 4 --score judge --judge auto", "{} --beams 4 --score margin", "{} --beams 4 --predictor auto",
        "{} --beams 4 --stop-policy policy:Mine", "{} --beams 4 --threshold-policy schedule",
        "{} --beams 4 --rule fsd", "{} --beams 4 --rule fsd-sd", "{} --beams 4 --rule fsd-coupled,fsd-sd",
        "{} --beams 4 --compile capture", "{} --beams 4 --guard csqa", "{} --beams 4 --beam-width 2",
    ],
    "collect": [
        "--task none.yaml", "{} --data none.jsonl", "{} --device foo", "{} --dtype foo", "{} --rule foo",
        "{} --rule fsd --threshold 0.1 --score foo", "{} --target ./none --draft ./none", "{} --top-p 2",
        "{} --out file", "{} --ray foo:1", "{} --rule fsd", "{} --threshold 0.1", "{} --rule sd --threshold 0.1",
        "{} --log-probs 0", "{} --rule a:B", "{} --score js", "{} --data bad.jsonl",
        "--task gsm8k --data other.csv",
    ],
    "generate": [
        "--profile none.json hi", "--profile bad.json hi", "--profile folder hi", "--profile bad.json --tree 2,x hi",
        "--profile bad.json --device foo hi", "--profile bad.json --threshold nan hi", "--profile none.json --file no",
    ],
    "inspect": [
        "--rule foo hi", "--score foo hi", "--tree 2,x hi", "--device foo hi", "--threshold nan hi",
        "--rule target --tree 2,6 hi", "--rule target --draft-length 4 hi", "--rule target --score js hi",
        "--rule target --threshold -1 hi", "--profile none.json hi",
        "--target ./none --draft ./none hi", "--task none.yaml hi", "--score a:B hi", "--drafter a:B hi",
    ],
    "profile": [
        "show none.json", "validate bad.json", "diff none.json bad.json", "vllm none.json", "retime none.json",
        "retime bad.json --device foo", "retime bad.json --timing foo", "retime bad.json --minutes 0",
    ],
    "report": ["none", "folder", "bad.json", "bad.json --format foo"],
    "tasks": ["show none", "show none.yaml", "show bad.yaml", "show gsm8k --data none.jsonl", "show csqa --target ./n"],
    "traces": ["verify none", "describe folder", "plot none"],
    "train_predictor": [
        "--traces none --out x", "--traces folder --out x", "--traces none --out x --kind foo",
        "--traces none --out x --rule foo", "--traces none --out x --tokenizer ./none",
    ],
    "train_eagle": [
        "{} --out file", "{} --out x --device foo", "{} --out x --dtype foo", "{} --out x --layers a",
        "{} --out x --target ./none", "{} --out x --data none.jsonl", "--task none.yaml --out x",
        "{} --out x --epochs 0", "{} --out x --learning-rate -1", "--task gsm8k --data other.csv --out x",
    ],
}  # fmt: skip
CASES = [(command, line) for command, lines in MISTAKES.items() for line in lines]
# Runs all of them in one process: where a command imports torch, that ends it with the words below.
PROGRAM = """
import contextlib, importlib, io, json, sys
from fsd_calib.cli.console import run

class Loaded(BaseException):
    pass

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise Loaded

sys.meta_path.insert(0, NoTorch())
found = []
for command, line in json.load(sys.stdin):
    err = io.StringIO()
    arguments = line.replace("{}", "--task arithmetic --min-acc 0.9" if command == "calibrate" else "--task arithmetic")
    try:
        with contextlib.redirect_stderr(err), contextlib.redirect_stdout(err):
            code = run(importlib.import_module(f"fsd_calib.cli.{command}").app, "fsd", arguments.split())
    except Loaded:
        code = "torch is loaded"
    found.append([code, err.getvalue()])
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], tuple[object, str]]:
    """Exit code and output of each mistake."""
    folder = tmp_path_factory.mktemp("mistakes")
    (folder / "folder").mkdir()
    (folder / "file").write_text("x")
    (folder / "bad.yaml").write_text("name: x\n  bad: [\n")
    (folder / "bad.json").write_text("{bad")
    (folder / "bad.jsonl").write_text('{"question": "a"}\n{\n')
    (folder / "policy.py").write_text("class Mine: ...\n")
    (folder / "other.yaml").write_text("data: other.csv\ngrader: exact\n")
    (folder / "other.csv").write_text("city,country\nRome,Italy\n")
    (folder / "utf16.csv").write_bytes(b"\xff\xfea\0")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=json.dumps(CASES), cwd=folder, env=environment, capture_output=True,
        text=True, timeout=300,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return dict(zip(CASES, map(tuple, json.loads(ran.stdout)), strict=True))


@pytest.mark.parametrize(("command", "line"), CASES)
def test_what_shows_without_torch_is_refused_before_it_is_loaded(
    command: str, line: str, refusals: dict[tuple[str, str], tuple[object, str]]
) -> None:
    code, output = refusals[command, line]
    assert code == 2, output
    assert ": error: " in output
    assert output.count("\n") == 1


def test_devices_of_other_packages_and_folders_that_hold_a_tokenizer_alone_are_left_to_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fsd_calib.cli import options

    options.check_sources({"--tokenizer": [str(tmp_path), "owner/name", None]}, configured=False)
    options.check_sources({"--target": ["gpt2"]})
    options.check_place("cuda:1", "float64")
    monkeypatch.setattr(options, "entry_points", lambda group: ["one"])
    options.check_place("npu:0", None)


def test_a_folder_of_files_is_data_where_a_task_reads_one(tmp_path: Path) -> None:
    from fsd_calib.cli.options import check_data
    from fsd_calib.tasks import task_kind
    from fsd_common.errors import UsageError

    (tmp_path / "astronomy_test.csv").write_text("How far is it?,near,far,farther,farthest,B\nHow old?,1,2,3,4,A\n")
    check_data(task_kind("mmlu"), tmp_path)
    with pytest.raises(UsageError, match=r"data file .* cannot be read"):
        check_data(task_kind("gsm8k"), tmp_path)
