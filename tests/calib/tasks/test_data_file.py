"""Data files of problems: errors are reported with their line."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
from pathlib import Path

import pandas as pd
import pytest

from fsd_calib.tasks import load_task
from support.calibration.task_files import load_refusal, write_file

GOOD = b'{"question": "How many?", "answer": "#### 3"}\n'
OTHER = b'{"question": "How much?", "answer": "#### 3"}\n'


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "empty"),
        (b" \n\n", "empty"),
        (GOOD + b'{"question": "How many?",\n', "line 2: not JSON"),
        (GOOD + b"[1, 2]\n", "line 2: [1, 2] is not a JSON object"),
        (GOOD + b'\n{"question": "How much?"}\n', "line 3: no column 'answer'"),
        (GOOD + b'{"answer": "#### 3"}\n', "line 2: no column 'question'"),
        (b'{"question": "How many?", "answer": 3}\n', "line 1: column 'answer' is 3"),
        (b'{"question": " ", "answer": "#### 3"}\n', "line 1: column 'question' is"),
        (b'{"question": "How many?", "answer": "it is 3"}\n', "line 1: the answer does not end in '#### N'"),
        (b'{"question": "How many?", "answer": "3 ####"}\n', "line 1: the answer does not end in '#### N'"),
        (GOOD + b'{"question": "\xff", "answer": "#### 3"}\n', "line 2: not UTF-8"),
        (GOOD.decode().encode("utf-16"), "it is UTF-16, and not JSON, CSV or Parquet; save it as UTF-8"),
        (GOOD.decode().encode("utf-32"), "it is UTF-32"),
        (gzip.compress(GOOD, mtime=0)[:-9], "damaged gzip"),
        (bz2.compress(GOOD), "it is bzip2"),
        (lzma.compress(GOOD), "it is xz"),
        (b"\x28\xb5\x2f\xfd" + GOOD, "it is zstd"),
        (b"PK\x03\x04" + GOOD, "it is a zip archive, and not JSON, CSV or Parquet; unpack it first"),
        (b"PAR1" + GOOD, "damaged Parquet"),
        (GOOD + b'{"question": "\\ud800", "answer": "#### 3"}\n', "line 2: column 'question' holds half"),
        (GOOD + OTHER + GOOD + OTHER, "line 3: repeats the question of line 1"),
        (b"[" * 100_000 + b"\n", "line 1: JSON that cannot be read"),
        (b"9" * 5000 + b"\n", "line 1: JSON that cannot be read"),
    ],
)
def test_an_error_in_a_file_is_reported_with_its_line(content: bytes, expected: str, tmp_path: Path) -> None:
    path = write_file(tmp_path, content)
    message = load_refusal("gsm8k", data=path)
    assert str(path) in message
    assert expected in message


ROWS = [{"question": "How many, and why?", "answer": "Because\n#### 3"}, {"question": "How much?", "answer": "#### 4"}]


def _written(folder: Path, name: str) -> Path:
    path, frame = folder / name, pd.DataFrame(ROWS)
    if ".csv" in name or ".tsv" in name:
        frame.to_csv(path, index=False, sep="\t" if ".tsv" in name else ",")
    elif name.endswith(".parquet"):
        frame.to_parquet(path)
    else:
        frame.to_json(path, orient="records", lines=".jsonl" in name, indent=1 if "indented" in name else None)
    return path


@pytest.mark.parametrize(
    "name", ["a.jsonl", "a.json", "indented.json", "a.csv", "a.tsv", "a.parquet", "a.jsonl.gz", "a.json.gz", "a.csv.gz"]
)
def test_one_problem_is_read_from_every_format(name: str, tmp_path: Path) -> None:
    task = load_task("gsm8k", data=_written(tmp_path, name))
    assert [{"question": p.question, "answer": p.reference} for p in task.problems] == ROWS


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.csv", "question,answer\nHow many?,#### 3,4\n", "line 2: 3 columns, where the header has 2"),
        ("a.csv", 'question,answer\n"How many?,#### 3\n', "not CSV"),
        ("a.csv", "question,answer\n", "empty"),
        (
            "a.csv",
            "question,answer,answer\nHow many?,1,2\n",
            'line 1: two columns have the same name, "answer"; rename one',
        ),
        ("a.json", '[{"question": "How many?"}]', "row 1: no column 'answer'; its columns are question"),
        ("a.json", '[{"question": "How many?",\n]', "not JSON"),
        ("a.json", "[]", "empty"),
    ],
)
def test_an_error_in_a_table_or_an_array_is_reported_with_its_row(
    name: str, content: str, expected: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_text(content)
    message = load_refusal("gsm8k", data=path)
    assert str(path) in message
    assert expected in message


def test_repeated_lines_are_counted(tmp_path: Path) -> None:
    assert "2 repeated lines" in load_refusal("gsm8k", data=write_file(tmp_path, GOOD + OTHER + GOOD + OTHER))


def test_a_missing_file_a_folder_and_an_invalid_name_are_refused(tmp_path: Path) -> None:
    missing = tmp_path / "missing.jsonl"
    assert f"{missing}: cannot be read (No such file" in load_refusal("gsm8k", data=str(missing))
    assert f"{tmp_path}: cannot be read (it is not a regular file" in load_refusal("gsm8k", data=tmp_path)
    assert "cannot be read" in load_refusal("gsm8k", data="a\0b")


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="permissions do not bind this user")
def test_a_file_without_read_permission_is_refused(tmp_path: Path) -> None:
    path = write_file(tmp_path, GOOD)
    path.chmod(0)
    assert "Permission denied" in load_refusal("gsm8k", data=path)
