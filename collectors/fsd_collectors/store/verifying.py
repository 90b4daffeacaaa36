"""`verify`: compares the traces in a folder with its manifest and its listing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from fsd_collectors.store.folder import file_of, leftovers
from fsd_collectors.store.listing import FileEntry, Listing, Shard, read_manifest
from fsd_collectors.store.row_checks import ORDER, WHOSE, row_faults
from fsd_collectors.store.shard_file import check_content, check_schema, check_size, read_file
from fsd_collectors.store.tables import problems_in, schemas
from fsd_decoding.errors import UsageError


def verify(path: str | os.PathLike[str]) -> list[str]:
    """Returns the faults of the traces in a folder, one line each; an unfinished run is no fault.

    Every byte is read, one portion at a time.

    Raises:
        UsageError: the manifest cannot be read.
    """
    folder = _Folder(Path(path))
    try:
        shards = folder.listing().shards
    except UsageError as error:
        return [str(error)]
    portions: dict[int, int] = {}  # portion by problem
    return [
        *(fault for shard in shards for fault in folder.faults(shard, portions)),
        *folder.unlisted_files(len(shards)),
    ]


def notes(path: str | os.PathLike[str]) -> list[str]:
    """Returns remarks on a folder that are no faults: missing portions, and files left by a killed collector.

    Raises:
        UsageError: the manifest or the listing cannot be read.
    """
    folder = _Folder(Path(path))
    finished, portions = len(folder.listing().shards), folder.manifest.portions
    missing = [f"{finished} of {portions} portions are finished"] if finished < portions else []
    return missing + [
        f"{name} is left from a collector that was killed, or is still running" for name in folder.unfinished(finished)
    ]


class _Folder:
    """A trace folder that is compared with its manifest."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.manifest = read_manifest(path)
        self._schemas = schemas(self.manifest)

    def listing(self) -> Listing:
        return Listing(self._path, tuple(self._schemas))

    def faults(self, shard: Shard, portions: dict[int, int]) -> Iterator[str]:
        """Yields the faults of a portion, and adds its problems to `portions`."""
        damaged = [str(error) for entry in shard.files if (error := self._damage(entry))]
        if damaged:
            yield from damaged
            return
        tables = {entry.table: self._places(entry) for entry in shard.files}
        for fault in (*row_faults(tables, self.manifest), *self._owned_twice(shard, tables["completions"], portions)):
            yield f"portion {shard.portion}: {fault}"

    def _damage(self, entry: FileEntry) -> UsageError | None:
        try:
            check_size(self._path, entry)
            check_schema(self._path, entry, self._schemas[entry.table])
            check_content(self._path, entry)
        except UsageError as error:
            return error
        return None

    def _places(self, entry: FileEntry) -> pa.Table:
        columns = WHOSE + (ORDER if entry.table == "tokens" else ())
        return read_file(self._path, entry, self._schemas[entry.table], columns)

    def _owned_twice(self, shard: Shard, completions: pa.Table, portions: dict[int, int]) -> Iterator[str]:
        expected = problems_in(shard.portion, self.manifest)
        if not shard.problems == completions.num_rows == expected:
            yield (
                f"it has {completions.num_rows} completions, {shard.problems} are listed, and the manifest implies "
                f"{expected}"
            )
        for problem in completions["problem"].to_pylist():
            if portions.setdefault(problem, shard.portion) != shard.portion:
                yield f"problem {problem} is in portion {portions[problem]} too"

    def unfinished(self, finished: int) -> list[str]:
        """Returns temporary files, and those of the portion that was being written."""
        temporary = {path.relative_to(self._path).as_posix() for path in leftovers(self._path)}
        return sorted(temporary | self._unlisted(finished) & self._portion(finished))

    def unlisted_files(self, finished: int) -> list[str]:
        """Returns a fault for each Parquet file that the listing does not explain."""
        unlisted = self._unlisted(finished) - self._portion(finished)
        return [f"{name} is not listed, but tools that read *.parquet would take it" for name in sorted(unlisted)]

    def _unlisted(self, finished: int) -> set[str]:
        existing = {path.relative_to(self._path).as_posix() for path in self._path.glob("*/*.parquet")}
        return existing.difference(*(self._portion(portion) for portion in range(finished)))

    def _portion(self, number: int) -> set[str]:
        return {file_of(table, number) for table in self._schemas}
