"""Problems from a JSON Lines file in GSM8K's original form: `question` and `answer`, which ends in `#### N`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from fsd_calib.tasks.base import Example
from fsd_calib.tasks.grading.numbers import MARK, marked_number
from fsd_decoding.errors import UsageError

_UNPACK = "decompress it first"
_BEGINNINGS = {
    b"\x1f\x8b": ("gzip", _UNPACK), b"BZh": ("bzip2", _UNPACK), b"\xfd7zXZ\0": ("xz", _UNPACK),
    b"\x28\xb5\x2f\xfd": ("zstd", _UNPACK), b"PK\3\4": ("a zip archive", "unpack it first"),
    b"7z\xbc\xaf": ("a 7z archive", "unpack it first"), b"PAR1": ("Parquet", "export it as JSON Lines"),
    b"ARROW1": ("Arrow", "export it as JSON Lines"), b"SQLite format 3": ("an SQLite database", "export JSON Lines"),
    b"\xff\xfe\0\0": ("UTF-32", "save it as UTF-8"), b"\0\0\xfe\xff": ("UTF-32", "save it as UTF-8"),
    b"\xff\xfe": ("UTF-16", "save it as UTF-8"), b"\xfe\xff": ("UTF-16", "save it as UTF-8"),
}  # fmt: skip


def read_examples(path: Path) -> list[Example]:
    """Returns all problems of a file, in order, without surrounding white space; blank lines are skipped.

    Raises:
        UsageError: The file is not in this form; the message names file and line. A repeated question is an error too,
            since it would count twice in a certificate, and the file's owner has to decide which one to keep.
    """
    numbered = [(number, _example(path, number, line)) for number, line in _lines(path) if line.strip()]
    if not numbered:
        raise UsageError(f"data file {path}: it is empty; it must hold one problem per line")
    _refuse_repeats(path, numbered)
    return [example for _, example in numbered]


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yields lines with their numbers; read as bytes, so that an invalid byte is reported with its line."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if number == 1:
                    _refuse_other_formats(path, line)
                yield number, line.decode("utf-8-sig")  # some editors write a byte-order mark
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}, line {number}: not UTF-8 ({error.reason}); save the file as UTF-8") from None
    except UsageError:
        raise
    except (OSError, ValueError) as error:  # ValueError: an invalid file name
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"data file {path}: cannot be read ({reason}); give a JSON Lines file") from None


def _refuse_other_formats(path: Path, line: bytes) -> None:
    """Raises UsageError where a file begins as those of a well-known other format do."""
    for beginning, (name, way_out) in _BEGINNINGS.items():
        if line.startswith(beginning):
            raise UsageError(f"data file {path}: it is {name}, and not JSON Lines; {way_out}")


def _example(path: Path, number: int, line: str) -> Example:
    where = f"{path}, line {number}"
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        reason = f"{error.msg}, column {error.colno}"
        raise UsageError(f"{where}: not JSON ({reason}); each line must be one object") from None
    except (ValueError, RecursionError) as error:  # a number too long, brackets too deep
        raise UsageError(f"{where}: JSON that cannot be read ({error}); simplify it") from None
    if not isinstance(row, dict):
        raise UsageError(f"{where}: not a JSON object; each line must hold a question and an answer")
    question, answer = _text(where, row, "question"), _text(where, row, "answer")
    if marked_number(answer) is None:
        raise UsageError(f"{where}: the answer does not end in '{MARK} N'; N must be its final number")
    return Example(question, answer)


def _text(where: str, row: dict[str, object], field: str) -> str:
    if field not in row:
        raise UsageError(f"{where}: no field {field!r}; each line must hold a question and an answer")
    text = row[field]
    if not isinstance(text, str) or not text.strip():
        raise UsageError(f"{where}: field {field!r} is {json.dumps(text)[:40]}; it must be a text")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(
            f"{where}: field {field!r} holds half a character (a lone surrogate); write it whole"
        ) from None
    return text.strip()


def _refuse_repeats(path: Path, numbered: list[tuple[int, Example]]) -> None:
    first: dict[str, int] = {}
    repeats = [
        (number, first[example.question])
        for number, example in numbered
        if first.setdefault(example.question, number) != number
    ]
    if repeats:
        number, original = repeats[0]
        raise UsageError(
            f"{path}, line {number}: repeats the question of line {original}; "
            f"each may occur once, remove the others ({len(repeats)} repeated lines in all)"
        )
