"""Files in YAML, and what they name, that would hang a run, fill its memory, or mean something else than they say."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import pytest

from fsd_calib.calibration.run_file import read_run_file
from fsd_calib.tasks import load_task
from fsd_calib.tasks.sources import rows
from support.messages import usage_error

TASK = 'grader: exact\ndata: rows.jsonl\nprompt: "{{ question }}"\n'
BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)
)
_LOOPS = "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(99) %}{% endfor %}{% endfor %}" + (
    "{% endfor %}{{ question }}"
)
_RING = "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}{{ question }}"
HOSTILE = {
    "yes": (TASK + "max_new_tokens: yes", "key 'max_new_tokens' is True; input should be a valid integer"),
    "octal": (TASK + "max_new_tokens: 010", "line 4: not YAML (010 is no plain whole number of at most 18 digits"),
    "minutes": (TASK + "max_new_tokens: 1:30", "line 4: not YAML (1:30 is no plain whole number"),
    "hexadecimal": (TASK + "max_new_tokens: 0x10", "line 4: not YAML (0x10 is no plain whole number"),
    "quoted": (TASK + "max_new_tokens: '8'", "key 'max_new_tokens' is '8'; input should be a valid integer"),
    "huge": (TASK + "max_new_tokens: 10000000", "key 'max_new_tokens' is 10000000; input should be less than or equal"),
    "long": (TASK + f"max_new_tokens: {'1' * 5000}", "is no plain whole number of at most 18 digits"),
    "half a character": (TASK + 'instruction: "\\uD800"', "line 4: not YAML ('\\ud800' holds half a character"),
    "aliases": (TASK + BOMB, "not YAML (it has more than 100,000 values"),
    "a ring": (TASK + "examples: &a [*a]", "not YAML (it has more than 100,000 values"),
    "depth": (TASK + f"examples: {'[' * 5000}{']' * 5000}", "it is nested too deeply"),
    "a list as a key": (TASK + "? [1]\n: 2", "line 4: not YAML ([1] cannot be a key"),
    "one key twice": (TASK + "grader: exact", "line 4: not YAML (key 'grader' is written twice"),
    "repetitions": (TASK + "extract: a{4294967295}", "key 'extract' is 'a{4294967295}'; is no regular expression that"),
    "groups": (TASK + f"extract: {'(' * 3000}{')' * 3000}", "is no regular expression that"),
    "eval": (TASK.replace("exact", "python") + "function: builtins.eval", "builtins.eval is of Python's own module"),
    "operator": (TASK.replace("exact", "python") + "function: operator.eq", "operator.eq is of Python's own module"),
    "passed on": (TASK.replace("exact", "python") + "function: mine.system", "mine.system is of Python's own module"),
    "loops": (TASK.replace("{{ question }}", _LOOPS), "its prompts cannot be rendered (it took more than 5 s of CPU"),
    "a text of terabytes": (
        TASK.replace("{{ question }}", "{{ question * 10 ** 13 }}"),
        "cannot be rendered (MemoryErr",
    ),
    "a large number": (
        TASK.replace("{{ question }}", "{{ question }}{{ 10 ** 5000 }}"),
        "key 'prompt': cannot be rend",
    ),
    "a power": (
        TASK.replace("{{ question }}", "{{ question }}{{ 9 ** (9 ** 9) }}"),
        "cannot be rendered (it took more",
    ),
    "a ring of macros": (TASK.replace("{{ question }}", _RING), "key 'prompt': cannot be rendered (maximum recursion"),
    "a random text": (TASK.replace("{{ question }}", "{{ question }}{{ lipsum() }}"), "'lipsum' is undefined"),
    "a random choice": (TASK.replace("{{ question }}", "{{ question | random }}"), "No filter named 'random'"),
    "half a prompt": (TASK.replace("{{ question }}", "{{ question }}{{ '\\\\uD800' }}"), "cannot be rendered ('utf-8'"),
    "single braces": (TASK.replace("{{ question }}", "{question}"), "its prompts name no column, so all are the same"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "rows.jsonl").write_text('{"question": "a", "answer": "b"}\n{"question": "c", "answer": "d"}\n')
    (tmp_path / "mine.py").write_text("from os import system\n")
    return tmp_path


def refusal(path: Path, **given: Any) -> str:
    return usage_error(lambda: load_task(str(path), **given))


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
