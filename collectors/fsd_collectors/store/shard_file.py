"""Writing, checking and reading of a single Parquet file; every error names the file."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow.fs import LocalFileSystem

from fsd_collectors.store.folder import file_of
from fsd_collectors.store.listing import FileEntry
from fsd_collectors.store.tables import difference
from fsd_common.errors import UsageError
from fsd_common.files import atomic_write

CHECKED = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
FORMAT = ds.ParquetFileFormat(default_fragment_scan_options=CHECKED)
FILES = LocalFileSystem()

_ROW_GROUP = 1 << 17  # rows of a row group, which streaming readers hold at a time


def write_file(rows: pa.Table, folder: Path, table: str, portion: int) -> FileEntry:
    """Writes a portion's rows of a table atomically and returns the entry for the listing."""
    path = file_of(table, portion)
    final = folder / path
    with atomic_write(final) as file:
        pq.write_table(
            rows, file, row_group_size=_ROW_GROUP, compression="zstd", compression_level=3, write_page_checksum=True,
            **_encodings(rows.schema),
        )  # fmt: skip
    return FileEntry(path=path, rows=rows.num_rows, bytes=final.stat().st_size, sha256=checksum(final))


def _encodings(schema: pa.Schema) -> dict[str, list[str]]:
    """Returns the encodings of the columns.

    Floats hardly repeat: with a dictionary they take 2.5 times the time and 1.5 times the size. Half floats (the hidden
    state) stay plain, since DuckDB 2.0 cannot read them otherwise.
    """
    floats = [field.name for field in schema if pa.types.is_floating(field.type)]
    return {
        "use_dictionary": [name for name in schema.names if name not in floats],
        "use_byte_stream_split": floats,
    }


def checksum(path: Path) -> str:
    """Returns the SHA-256 (hex) of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_size(folder: Path, entry: FileEntry) -> None:
    """Raises UsageError where the file is missing or has another size than listed."""
    with _errors_naming(folder, entry):
        size = (folder / entry.path).stat().st_size
        if size != entry.bytes:
            raise pa.ArrowInvalid(f"it has {size} bytes, but {entry.bytes} are listed")


def check_schema(folder: Path, entry: FileEntry, schema: pa.Schema) -> None:
    """Raises UsageError where the file has other columns or is of another run."""
    with _errors_naming(folder, entry):
        _refuse_foreign(pq.read_schema(folder / entry.path), schema)


def check_content(folder: Path, entry: FileEntry) -> None:
    """Raises UsageError where the file has changed since it was listed, or holds another number of rows."""
    with _errors_naming(folder, entry):
        if checksum(folder / entry.path) != entry.sha256:
            raise pa.ArrowInvalid("its SHA-256 differs from the listed one")
        rows = pq.read_metadata(folder / entry.path).num_rows
        if rows != entry.rows:
            raise pa.ArrowInvalid(f"it has {rows} rows, but {entry.rows} are listed")


def read_file(
    folder: Path, entry: FileEntry, schema: pa.Schema, columns: Sequence[str], where: ds.Expression | None = None
) -> pa.Table:
    """Returns the file's rows where `where` holds.

    Raises:
        UsageError: the file is missing, damaged or of another run.
    """
    with _errors_naming(folder, entry):
        path = (folder / entry.path).absolute()  # pyarrow would expand a leading ~
        fragment = FORMAT.make_fragment(str(path), filesystem=FILES)
        _refuse_foreign(fragment.physical_schema, schema)
        return fragment.to_table(schema=schema, columns=list(columns), filter=where)


def _refuse_foreign(actual: pa.Schema, expected: pa.Schema) -> None:
    if differs := difference(actual, expected):
        raise pa.ArrowInvalid(differs)


@contextlib.contextmanager
def _errors_naming(folder: Path, entry: FileEntry) -> Iterator[None]:
    """Turns all errors of a file into a UsageError of one line that names it."""
    try:
        yield
    except (OSError, ValueError, pa.ArrowException) as error:  # a damaged file raises any of them
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise UsageError(
            f"shard {str(folder / entry.path)!r} cannot be used: {reason}; restore it from a copy, or collect again "
            "into another folder"
        ) from error
