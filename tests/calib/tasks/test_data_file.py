"""Data files of problems: errors are reported with their line."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
from pathlib import Path

import pytest

from support.calibration.task_files import load_refusal, write_file

GOOD = b'{"question": "How many?", "answer": "#### 3"}\n'
OTHER = b'{"question": "How much?", "answer": "#### 3"}\n'


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "empty"),
        (b" \n\n", "empty"),
        (GOOD + b'{"question": "How many?",\n', "line 2: not JSON"),
        (GOOD + b"[1, 2]\n", "line 2: not a JSON object"),
        (GOOD + b'\n{"question": "How much?"}\n', "line 3: no field 'answer'"),
        (GOOD + b'{"answer": "#### 3"}\n', "line 2: no field 'question'"),
        (b'{"question": "How many?", "answer": 3}\n', "line 1: field 'answer' is 3"),
        (b'{"question": " ", "answer": "#### 3"}\n', "line 1: field 'question' is"),
        (b'{"question": "How many?", "answer": "it is 3"}\n', "line 1: the answer does not end in '#### N'"),
        (b'{"question": "How many?", "answer": "3 ####"}\n', "line 1: the answer does not end in '#### N'"),
        (GOOD + b'{"question": "\xff", "answer": "#### 3"}\n', "line 2: not UTF-8"),
        (GOOD.decode().encode("utf-16"), "it is UTF-16, and not JSON Lines; save it as UTF-8"),
        (GOOD.decode().encode("utf-32"), "it is UTF-32"),
        (gzip.compress(GOOD, mtime=0), "it is gzip, and not JSON Lines; decompress it first"),
        (bz2.compress(GOOD), "it is bzip2"),
        (lzma.compress(GOOD), "it is xz"),
        (b"\x28\xb5\x2f\xfd" + GOOD, "it is zstd"),
        (b"PK\x03\x04" + GOOD, "it is a zip archive, and not JSON Lines; unpack it first"),
        (b"PAR1" + GOOD, "it is Parquet, and not JSON Lines; export it as JSON Lines"),
        (GOOD + b'{"question": "\\ud800", "answer": "#### 3"}\n', "line 2: field 'question' holds half"),
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


def test_repeated_lines_are_counted(tmp_path: Path) -> None:
    assert "2 repeated lines" in load_refusal("gsm8k", data=write_file(tmp_path, GOOD + OTHER + GOOD + OTHER))


def test_a_missing_file_a_folder_and_an_invalid_name_are_refused(tmp_path: Path) -> None:
    missing = tmp_path / "missing.jsonl"
    assert f"{missing}: cannot be read (No such file" in load_refusal("gsm8k", data=str(missing))
    assert f"{tmp_path}: cannot be read (Is a directory" in load_refusal("gsm8k", data=tmp_path)
    assert "cannot be read" in load_refusal("gsm8k", data="a\0b")


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="permissions do not bind this user")
def test_a_file_without_read_permission_is_refused(tmp_path: Path) -> None:
    path = write_file(tmp_path, GOOD)
    path.chmod(0)
    assert "Permission denied" in load_refusal("gsm8k", data=path)
