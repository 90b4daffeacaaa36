"""Files in YAML, and what they name, that would hang a run, fill its memory, or mean something else than they say."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import pytest

from fsd_calib.calibration.run_file import read_run_file
from fsd_calib.tasks import load_task, rows
from lib.attacks.hostile_yaml import BOMB, HOSTILE, TASK
from support.messages import usage_error


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "rows.jsonl").write_text('{"question": "a", "answer": "b"}\n{"question": "c", "answer": "d"}\n')
    (tmp_path / "mine.py").write_text("from os import system\n")
    return tmp_path


def refusal(path: Path, **given: Any) -> str:
    return usage_error(lambda: load_task(str(path), **given))


@pytest.mark.thinned(every=3)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_task_is_one_line(name: str, folder: Path) -> None:
    content, complaint = HOSTILE[name]
    (folder / "task.yaml").write_text(content)
    assert complaint in refusal(folder / "task.yaml")


def test_the_prompt_of_a_chat_may_be_its_own(folder: Path) -> None:
    (folder / "task.yaml").write_text("grader: exact\ndata: rows.jsonl\nmessages: [{role: user, content: hello}]\n")
    assert "its prompts name no column" in refusal(folder / "task.yaml")
    (folder / "task.yaml").write_text(
        "grader: exact\ndata: rows.jsonl\n"
        "messages: [{role: system, content: hello}, {role: user, content: '{{ question }}'}]"
    )
    load_task(str(folder / "task.yaml"))


def test_numbers_are_as_strict_in_run_files(folder: Path) -> None:
    (folder / "run.yaml").write_text("run: {limit: 010}")
    assert "line 1: not YAML (010 is no plain whole number" in usage_error(lambda: read_run_file(folder))
    (folder / "run.yaml").write_text(BOMB)
    assert "more than 100,000 values" in usage_error(lambda: read_run_file(folder))


@pytest.mark.parametrize("kind", ["a pipe", "a device", "a large file"])
def test_what_is_no_file_of_that_kind_is_not_read(kind: str, folder: Path) -> None:
    path = folder / "odd.yaml"
    if kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a device":
        path.symlink_to("/dev/zero")
    else:
        with path.open("wb") as file:
            file.truncate(1 << 40)
    said = "it has 1,099,511,627,776 bytes, and at most" if kind == "a large file" else "it is not a regular file"
    (folder / "task.yaml").write_text(TASK)
    for read in (lambda: load_task(str(path)), lambda: read_run_file(path),
                 lambda: load_task(str(folder / "task.yaml"), data=path)):  # fmt: skip
        assert said in usage_error(read)


def test_a_small_file_that_unpacks_to_a_large_one_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "_LARGEST", 1 << 20)
    (folder / "rows.jsonl.gz").write_bytes(gzip.compress(b" " * (1 << 22)))
    (folder / "task.yaml").write_text(TASK)
    said = refusal(folder / "task.yaml", data=folder / "rows.jsonl.gz")
    assert "has more than 1,048,576 bytes unpacked" in said
