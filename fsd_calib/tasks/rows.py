"""Rows with named columns, of a file (JSON Lines, JSON, CSV or Parquet, gzipped or not) or the Hugging Face hub."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from fsd_calib.tasks.base import Example, Read, pick
from fsd_collectors.split import Part
from fsd_common.argument_checks import named
from fsd_common.errors import UsageError
from fsd_common.files import read_regular
from fsd_decoding.hub import explain, fetch_data, hub

_UNPACK = "decompress it first"
_OTHERS = {
    b"BZh": ("bzip2", _UNPACK), b"\xfd7zXZ\0": ("xz", _UNPACK), b"\x28\xb5\x2f\xfd": ("zstd", _UNPACK),
    b"PK\3\4": ("a zip archive", "unpack it first"), b"7z\xbc\xaf": ("a 7z archive", "unpack it first"),
    b"ARROW1": ("Arrow", "export it as Parquet"), b"SQLite format 3": ("an SQLite database", "export JSON Lines"),
    b"\xff\xfe\0\0": ("UTF-32", "save it as UTF-8"), b"\0\0\xfe\xff": ("UTF-32", "save it as UTF-8"),
    b"\xff\xfe": ("UTF-16", "save it as UTF-8"), b"\xfe\xff": ("UTF-16", "save it as UTF-8"),
}  # fmt: skip
_GZIP, _PARQUET = b"\x1f\x8b", b"PAR1"
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_LARGEST = 1 << 30  # bytes; rows of them take several times as many
QUICK = 1 << 23
"""Bytes of a file whose rows are read within a second."""
_SHOWN = 40  # characters of a value in a message
_LISTED = 400  # characters of the names of columns


@dataclass(frozen=True)
class Row:
    """One row of a source.

    Attributes:
        where: File and line, or data set and row, for messages.
        columns: Values by the column's name.
    """

    where: str
    columns: Mapping[str, object]

    def __getitem__(self, column: str) -> object:
        """The value of a column; UsageError: there is none of this name."""
        if column not in self.columns:
            known = ", ".join(self.columns) or "none"
            known = known if len(known) <= _LISTED else f"{known[:_LISTED]}…"
            raise UsageError(f"{self.where}: no column {column!r}; its columns are {known}")
        return self.columns[column]

    def text(self, column: str) -> str:
        """The value of a column without surrounding white space; UsageError: it is no text, or empty."""
        return self.raw(column).strip()

    def raw(self, column: str) -> str:
        """The value of a column as it is; UsageError: it is no text, or empty."""
        value = self[column]
        if not isinstance(value, str) or not value.strip():
            raise UsageError(f"{self.where}: column {column!r} is {shown(value)}; it must be a text")
        return self.whole(column, value)

    def whole(self, column: str, text: str) -> str:
        """Returns the text; UsageError: a character of it is incomplete."""
        try:
            text.encode()
        except UnicodeEncodeError:
            raise UsageError(
                f"{self.where}: column {column!r} holds half a character (a lone surrogate); write it whole"
            ) from None
        return text


def shown(value: object) -> str:
    """A value as messages show it."""
    text = json.dumps(value, default=str)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def read_rows(path: Path, header: Sequence[str] | None = None, lines: str | None = None) -> list[Row]:
    """Returns all rows of a file in order; blank lines are skipped.

    Args:
        path: Ends in .csv or .tsv for tables of text; JSON and Parquet are told by their content, and gzip too.
        header: Names of the columns of a table without a header line.
        lines: Name of the column that the lines of a .txt are; None: there are no such files.

    Raises:
        UsageError: The file cannot be read, is in another format, or is empty; the message names file and line.
    """
    content = _unpacked(path, _read(path))
    _refuse_other_formats(path, content)
    suffix = Path(path.name.lower().removesuffix(".gz")).suffix
    if content.startswith(_PARQUET):
        rows = _parquet(path, content)
    elif suffix == ".txt" and lines is not None:
        rows = _text_lines(path, _decoded(path, content), lines)
    elif delimiter := _DELIMITERS.get(suffix):
        rows = _table(path, _decoded(path, content), delimiter, header)
    elif content.lstrip().startswith(b"[") and content.lstrip()[1:].lstrip().startswith((b"{", b"]")):
        # One array over several lines or of objects, not a line of a list.
        rows = _array(path, _decoded(path, content))
    else:
        rows = _json_lines(path, content)
    found = list(rows)
    if not found:
        raise UsageError(f"data file {path}: it is empty; it must hold one problem per row")
    return found


def check_data_file(path: Path) -> None:
    """Raises UsageError where a file cannot be read, or is seen at once to be in no format that `read_rows` reads.

    Of a table only a task knows whether it has a header, and large files are read once.
    """
    content = _unpacked(path, _read(path))
    _refuse_other_formats(path, content)
    suffixes = {suffix.lower() for suffix in path.suffixes}
    if len(content) <= QUICK and not suffixes & {*_DELIMITERS, ".txt"}:
        read_rows(path)


def _read(path: Path) -> bytes:
    try:
        return read_regular(path, _LARGEST)
    except (OSError, ValueError) as error:  # ValueError: an invalid file name
        reason = getattr(error, "strerror", None) or error
        raise UsageError(
            f"data file {path}: cannot be read ({reason}); give a file of JSON Lines, JSON, CSV or Parquet"
        ) from None


def _unpacked(path: Path, content: bytes) -> bytes:
    if not content.startswith(_GZIP):
        return content
    try:
        unpacked = gzip.GzipFile(fileobj=io.BytesIO(content)).read(_LARGEST + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"data file {path}: damaged gzip ({error}); fetch it again") from None
    if len(unpacked) > _LARGEST:
        raise UsageError(f"data file {path}: it has more than {_LARGEST:,} bytes unpacked; give a part of it")
    return unpacked


def _refuse_other_formats(path: Path, content: bytes) -> None:
    """Raises UsageError where a file begins as those of a well-known other format do."""
    for beginning, (name, way_out) in _OTHERS.items():
        if content.startswith(beginning):
            raise UsageError(f"data file {path}: it is {name}, and not JSON, CSV or Parquet; {way_out}")


def _parquet(path: Path, content: bytes) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows = pq.read_table(io.BytesIO(content)).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise UsageError(
            f"data file {path}: damaged Parquet ({' '.join(str(error).split())}); fetch it again"
        ) from None
    for number, row in enumerate(rows, start=1):
        yield Row(f"{path}, row {number}", row)


def _decoded(path: Path, content: bytes) -> str:
    """The text of a file; UsageError names the line that is not UTF-8."""
    try:
        return content.decode("utf-8-sig")  # some editors write a byte-order mark
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{path}, line {line}: not UTF-8 ({error.reason}); save the file as UTF-8") from None


def _text_lines(path: Path, text: str, column: str) -> Iterator[Row]:
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield Row(f"{path}, line {number}", {column: line})


def _table(path: Path, text: str, delimiter: str, header: Sequence[str] | None) -> Iterator[Row]:
    csv.field_size_limit(len(text) + 1)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    names = list(header) if header is not None else None
    try:
        for values in reader:
            where = f"{path}, line {reader.line_num}"
            if not values:
                continue
            if names is None:
                names = [name.strip() for name in values]
                name, times = Counter(names).most_common(1)[0]
                if times > 1:
                    raise UsageError(f"{where}: two columns have the same name, {shown(name)}; rename one")
                continue
            if len(values) != len(names):
                raise UsageError(f"{where}: {len(values)} columns, where the header has {len(names)}; quote commas")
            yield Row(where, dict(zip(names, values, strict=True)))
    except csv.Error as error:
        raise UsageError(f"{path}, line {reader.line_num}: not CSV ({error}); repair the line") from None


def _array(path: Path, text: str) -> Iterator[Row]:
    values = _parsed(f"data file {path}", text, "the file must be one array of objects")
    assert isinstance(values, list)  # it begins with a bracket
    for number, value in enumerate(values, start=1):
        yield _object(f"{path}, row {number}", value)


def _json_lines(path: Path, content: bytes) -> Iterator[Row]:
    for number, line in enumerate(_decoded(path, content).split("\n"), start=1):
        if line.strip():
            where = f"{path}, line {number}"
            yield _object(where, _parsed(where, line, "each line must be one object"))


def _parsed(where: str, text: str, rule: str) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        at = f"column {error.colno}" if error.lineno == 1 else f"line {error.lineno}, column {error.colno}"
        raise UsageError(f"{where}: not JSON ({error.msg}, {at}); {rule}") from None
    except (ValueError, RecursionError) as error:  # a number too long, brackets too deep
        raise UsageError(f"{where}: JSON that cannot be read ({error}); simplify it") from None


def _object(where: str, value: object) -> Row:
    if not isinstance(value, dict):
        raise UsageError(f"{where}: {shown(value)} is not a JSON object; each row must hold columns by name")
    return Row(where, value)


@dataclass(frozen=True)
class HubData:
    """A data set on the hub, and which of its splits are used for what.

    Attributes:
        id: Of the data set.
        parts: What its splits are used for; None: the source has no parts.
        configuration: Its configuration; None: the only one.
        files: Patterns of the files that it takes; others are not fetched.
        instead: What a file must be that takes its place.
    """

    id: str
    parts: Mapping[str, Part | None]
    configuration: str | None = None
    files: Sequence[str] = ("*",)
    instead: str = "a local file"

    def __str__(self) -> str:
        """How profiles name it: `openai/gsm8k main (train: tuning, test: certification)`."""
        used = ", ".join(f"{split}: {part}" if part else split for split, part in self.parts.items())
        return " ".join(filter(None, [self.id, self.configuration, f"({used})"]))

    def rows(self, task: str) -> Iterator[tuple[Row, Part | None]]:
        """Yields all rows of its splits, with the part that each belongs to.

        Raises:
            UsageError: The hub does not give it, and it is not in the local cache.
        """
        from datasets import load_dataset

        try:
            folder = fetch_data(self.id, self.files)  # `datasets` would wait for minutes for a hub that does not answer
            with _without_bars():
                splits = load_dataset(self.id if folder is None else str(folder), self.configuration)
            found = {split: splits[split] for split in self.parts}
        except Exception as error:  # network, hub, cache or disk: the way out is the same
            raise UsageError(
                f"task {task}: {self.id} cannot be loaded from {hub()} or its local cache: "
                f"{explain(self.id, error, 'hf download --repo-type dataset')}; {named('data')} takes "
                f"{self.instead}"
            ) from error
        for split, part in self.parts.items():
            for number, row in enumerate(found[split], start=1):
                yield Row(f"{self.id}, {split}, row {number}", row), part


def read_or_fetch(task: str, hub: HubData, example: Callable[[Row], Example]) -> Read:
    """Returns how a task reads its examples, of a file or, where none is given, of a data set on the hub."""

    def read(seed: int, limit: int | None, data: Path | None) -> tuple[Sequence[Example], str]:
        if data is not None:
            return pick(examples_of(read_rows(data), example), seed, limit), str(data)
        return pick([replace(example(row), part=part) for row, part in hub.rows(task)], seed, limit), str(hub)

    return read


@contextmanager
def _without_bars() -> Iterator[None]:
    """Inside, `datasets` shows no bars of its own, unless its variable asks for them; those of downloads stay."""
    from datasets.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if are_progress_bars_disabled() or "HF_DATASETS_DISABLE_PROGRESS_BARS" in os.environ:
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


def examples_of(rows: Iterable[Row], example: Callable[[Row], Example]) -> list[Example]:
    """Returns the examples of rows from a file.

    Raises:
        UsageError: A question, with its choices, is in two rows: it would count twice in a certificate, and the file's
            owner has to decide which one to keep.
    """
    first: dict[tuple[str, tuple[str, ...]], str] = {}
    found, repeats = [], []
    for row in rows:
        made = example(row)
        original = first.setdefault((made.question, made.choices), row.where)
        if original != row.where:
            repeats.append((row.where, original))
        found.append(made)
    if repeats:
        where, original = repeats[0]
        raise UsageError(
            f"{where}: repeats the question of {original.rpartition(', ')[2]}; each may occur once, remove the others "
            f"({len(repeats)} repeated lines in all)"
        )
    return found
