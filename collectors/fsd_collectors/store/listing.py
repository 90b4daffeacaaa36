"""The files of text in a trace folder: manifest.json, and shards.jsonl, the listing of the finished portions.

manifest.json            the facts of the run
shards.jsonl             one line for each finished portion; files it does not list do not count
tokens/00000.parquet     one file for each portion and table
completions/00000.parquet
rounds/00000.parquet     on-policy traces only, not those of serving
.lock                    held by the collector that writes to the folder
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, ValidationError

from fsd_collectors.schema import SCHEMA_VERSION
from fsd_common.errors import UsageError
from fsd_common.files import open_to_append, read_regular, sync
from fsd_common.strict_json import parse_versioned
from fsd_decoding.profile.io import first_problem
from fsd_decoding.profile.parts import Count, Natural, Part

if TYPE_CHECKING:
    from fsd_collectors.manifest import Manifest

MANIFEST = "manifest.json"
LISTING = "shards.jsonl"
LOCK = ".lock"
_LARGEST = 1 << 28  # bytes of a file of text


def file_of(table: str, portion: int) -> str:
    """Returns the path of a portion's file of a table, relative to the folder."""
    return f"{table}/{portion:05d}.parquet"


def content_of(path: Path) -> bytes:
    """Returns what a file of the folder holds. UsageError: it cannot be read."""
    try:
        return read_regular(path, _LARGEST)
    except OSError as error:
        raise UsageError(f"folder {str(path.parent)!r}: {path.name} cannot be read ({error.strerror})") from error


class FileEntry(Part):
    """One file of a portion: its number of rows, and its size and checksum."""

    path: Annotated[str, Field(pattern=r"^\w+/\d+\.parquet$")]  # relative to the folder
    rows: Count
    bytes: Natural
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

    @property
    def table(self) -> str:
        return self.path.partition("/")[0]


class Shard(Part):
    """A finished portion and its files."""

    portion: Count
    problems: Natural
    files: tuple[FileEntry, ...]

    def file(self, table: str) -> FileEntry:
        return next(file for file in self.files if file.table == table)


class Listing:
    """The listing of one folder, shards.jsonl.

    Args:
        folder: the trace folder; it may lack the file only while it holds no portion.
        tables: tables that every portion must have a file of, in this order.

    Raises:
        UsageError: the file is missing, or a line is damaged or of another portion than its position says.
    """

    def __init__(self, folder: Path, tables: Sequence[str]) -> None:
        self._path = folder / LISTING
        begun = self._path.exists() or any(folder.glob("*/*.parquet"))
        content = content_of(self._path) if begun else b""
        *lines, torn = content.split(b"\n")  # torn: an incomplete last line, left by a writer that was killed
        self.shards = [_shard(line, number, tables, self._path) for number, line in enumerate(lines)]
        self._end = len(content) - len(torn)

    def append(self, shard: Shard) -> None:
        """Appends a line, replacing an incomplete one, and flushes it to the disk."""
        line = shard.model_dump_json().encode() + b"\n"
        with open_to_append(self._path) as file:
            file.truncate(self._end)
            file.write(line)
            sync(file)
        self.shards.append(shard)
        self._end += len(line)

    def drop_torn_line(self) -> None:
        """Removes a line that `append` could not finish."""
        with open_to_append(self._path) as file:
            file.truncate(self._end)


def has_no_finished_portion(folder: Path) -> bool:
    """Returns whether the folder's listing exists and is empty; without a listing nothing is known, so False."""
    path = folder / LISTING
    return path.exists() and b"\n" not in content_of(path)


def _shard(line: bytes, number: int, tables: Sequence[str], path: Path) -> Shard:
    place = f"listing {str(path)!r}, line {number + 1},"
    try:
        shard = Shard.model_validate_json(line)
    except ValidationError as error:
        raise UsageError(f"{place} is damaged ({first_problem(error)}); restore the file from a copy") from error
    if shard.portion != number or [file.path for file in shard.files] != [file_of(table, number) for table in tables]:
        raise UsageError(
            f"{place} is of portion {shard.portion} with the tables {[file.table for file in shard.files]}, but should "
            f"be of portion {number} with {list(tables)}; restore the file from a copy"
        )
    return shard


def read_manifest(folder: Path) -> Manifest:
    """Reads the manifest, a `LabelManifest` where the folder holds labels.

    Raises:
        UsageError: it is missing, is not valid JSON, or has a newer schema.
    """
    from fsd_collectors.manifest import LabelManifest, Manifest  # which load torch

    path = folder / MANIFEST
    name = f"manifest {str(path)!r}"
    facts = parse_versioned(content_of(path), name, SCHEMA_VERSION, "one of traces")
    try:
        return (LabelManifest if facts.get("way") == "labels" else Manifest).model_validate(facts)
    except ValidationError as error:
        raise UsageError(f"{name} is not valid: {first_problem(error)}") from error
