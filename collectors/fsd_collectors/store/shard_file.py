"""One Parquet file of a trace: written, checked and read, always under its name.

Knows Parquet: compression, encodings, checksums. Knows neither which files there are nor what the rows mean.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow.fs import LocalFileSystem

from fsd_collectors.store.folder import file_of, whole
from fsd_collectors.store.listing import FileEntry
from fsd_collectors.store.tables import difference
from fsd_decoding.errors import UsageError

CHECKED = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
FORMAT = ds.ParquetFileFormat(default_fragment_scan_options=CHECKED)
FILES = LocalFileSystem()

_ROW_GROUP = 1 << 17  # rows: what readers that stream hold at a time


def write_file(rows: pa.Table, folder: Path, table: str, portion: int) -> FileEntry:
    """Writes a portion's rows of a table, whole or not at all; what the listing shall say of it."""
    path = file_of(table, portion)
    final = folder / path
    with whole(final) as file:
        pq.write_table(
            rows, file, row_group_size=_ROW_GROUP, compression="zstd", compression_level=3, write_page_checksum=True,
            **_encodings(rows.schema),
        )  # fmt: skip
    return FileEntry(path=path, rows=rows.num_rows, bytes=final.stat().st_size, sha256=checksum(final))


def _encodings(schema: pa.Schema) -> dict[str, list[str]]:
    """Floats hardly repeat: a dictionary of them costs 2.5 times the time and half as many bytes again.

    Halves (the hidden state) stay plain: DuckDB 2.0 reads no others.
    """
    floats = [field.name for field in schema if pa.types.is_floating(field.type)]
    return {
        "use_dictionary": [name for name in schema.names if name not in floats],
        "use_byte_stream_split": floats,
    }


def checksum(path: Path) -> str:
    """SHA-256 (hex) of the file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_size(folder: Path, entry: FileEntry) -> None:
    """UsageError: the file is missing, or longer or shorter than listed."""
    with _named(folder, entry):
        size = (folder / entry.path).stat().st_size
        if size != entry.bytes:
            raise pa.ArrowInvalid(f"it has {size} bytes, listed are {entry.bytes}")


def check_schema(folder: Path, entry: FileEntry, schema: pa.Schema) -> None:
    """UsageError: the file's columns or its run are others."""
    with _named(folder, entry):
        _refuse_foreign(pq.read_schema(folder / entry.path), schema)


def check_content(folder: Path, entry: FileEntry) -> None:
    """UsageError: a byte has changed since the file was listed, or it holds another number of rows."""
    with _named(folder, entry):
        if checksum(folder / entry.path) != entry.sha256:
            raise pa.ArrowInvalid("its SHA-256 is not the listed one")
        rows = pq.read_metadata(folder / entry.path).num_rows
        if rows != entry.rows:
            raise pa.ArrowInvalid(f"it has {rows} rows, listed are {entry.rows}")


def read_file(
    folder: Path, entry: FileEntry, schema: pa.Schema, columns: Sequence[str], where: ds.Expression | None = None
) -> pa.Table:
    """The file's rows where `where` holds. UsageError: it is missing, damaged or foreign."""
    with _named(folder, entry):
        path = (folder / entry.path).absolute()  # pyarrow would take a leading ~ for a home
        fragment = FORMAT.make_fragment(str(path), filesystem=FILES)
        _refuse_foreign(fragment.physical_schema, schema)
        return fragment.to_table(schema=schema, columns=list(columns), filter=where)


def _refuse_foreign(found: pa.Schema, wanted: pa.Schema) -> None:
    if differs := difference(found, wanted):
        raise pa.ArrowInvalid(differs)


@contextlib.contextmanager
def _named(folder: Path, entry: FileEntry) -> Iterator[None]:
    """Whatever is wrong with a file is said with its name, in one line."""
    try:
        yield
    except (OSError, ValueError, pa.ArrowException) as error:  # a damaged file raises any of them
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise UsageError(
            f"shard {str(folder / entry.path)!r} cannot be used: {reason}; restore it from a copy, or collect again "
            "into another folder"
        ) from error
