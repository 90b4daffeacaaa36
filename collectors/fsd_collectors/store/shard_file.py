"""A single Parquet file, written, checked and read by the schema of its table; every error names the file."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow.fs import LocalFileSystem

from fsd_collectors.manifest import Manifest
from fsd_collectors.schema import schema_of
from fsd_collectors.store.listing import FileEntry, file_of
from fsd_common.errors import UsageError
from fsd_common.files import atomic_write
from fsd_common.terminal import visible

_RUN = "fsd_run"


def schemas(manifest: Manifest) -> dict[str, pa.Schema]:
    """Returns the schemas of the run's tables, in the order of the listing; their metadata hold the run's id."""
    plain = {table: schema_of(table, columns) for table, columns in manifest.tables.items()}
    return {table: schema.with_metadata({**schema.metadata, _RUN: manifest.run}) for table, schema in plain.items()}


def problems_in(earlier: int, manifest: Manifest) -> range:
    """Returns the numbers of completions that a portion may have, behind `earlier` completions of the run.

    Only the last portion has fewer than `manifest.portion`. In serving any may: one ends wherever the server did.
    """
    most = min(manifest.portion, manifest.task.problems - earlier)
    return range(1 if manifest.way == "serving" else most, most + 1)


def in_words(counts: range) -> str:
    least, most = counts.start, counts.stop - 1
    return f"{most}" if least >= most else f"{least} to {most}"


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Returns the rows with exactly the schema's columns, order and types.

    Raises:
        ValueError: a column is missing or unknown, does not fit its type, or has nulls though it is not nullable.
    """
    missing = [name for name in schema.names if name not in table.column_names]
    unknown = [name for name in table.column_names if name not in schema.names]
    if missing or unknown or len(table.column_names) != len(schema):
        raise ValueError(
            f"columns {table.column_names}: {missing} are missing, {unknown} are unknown, or one is doubled"
        )
    return pa.Table.from_arrays([_cast(table[field.name], field) for field in schema], schema=schema)


def _cast(values: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    if values.null_count and not field.nullable:
        raise ValueError(f"column {field.name!r} has {values.null_count} nulls; it may have none")
    try:
        return values.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ValueError(f"column {field.name!r} does not fit {field.type}: {error}") from error


def difference(actual: pa.Schema, expected: pa.Schema) -> str | None:
    """Returns, in words, how a schema differs from that of the run, or None where it does not."""
    for field in expected:
        if field.name not in actual.names:
            return f"it has no column {field.name!r:.80}"
        if not actual.field(field.name).equals(field):
            return f"its column {actual.field(field.name)!s:.80} should be {field!s:.80}"
    if actual.names != expected.names:
        return f"its columns are {actual.names}"
    of_run, run = (schema.metadata.get(_RUN.encode(), b"?").decode() for schema in (actual, expected))
    return f"it is of run {of_run}, not {run}" if of_run != run else None


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
    return {"use_dictionary": [name for name in schema.names if name not in floats], "use_byte_stream_split": floats}


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
        reason = getattr(error, "strerror", None) or visible(str(error).partition("\n")[0])
        raise UsageError(
            f"shard {str(folder / entry.path)!r} cannot be used: {reason}; restore it from a copy, or collect again "
            "into another folder"
        ) from error
