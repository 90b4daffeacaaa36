"""Whether a folder's traces are what its manifest and its listing say.

Knows what a sound folder is made of. What a sound portion is made of is `row_checks.py`.
"""

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
    """What is wrong with the traces in a folder, a line each; empty: they are sound, as far as they go.

    Reads every byte, a portion at a time. UsageError: there is no manifest to hold them against.
    """
    folder = _Folder(Path(path))
    try:
        shards = folder.listing().shards
    except UsageError as error:
        return [str(error)]
    portions: dict[int, int] = {}  # problem -> the portion that it is in
    return [
        *(fault for shard in shards for fault in folder.faults(shard, portions)),
        *folder.strangers(len(shards)),
    ]


def notes(path: str | os.PathLike[str]) -> list[str]:
    """What is worth knowing of a folder and is no fault: what is still to be collected, and what a kill left there.

    UsageError: its manifest or its listing cannot be read.
    """
    folder = _Folder(Path(path))
    finished, portions = len(folder.listing().shards), folder.manifest.portions
    missing = [f"{finished} of {portions} portions are finished"] if finished < portions else []
    return missing + [
        f"{name} is left from a collector that was killed, or is at work" for name in folder.unfinished(finished)
    ]


class _Folder:
    """A trace folder held against its manifest."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.manifest = read_manifest(path)
        self._schemas = schemas(self.manifest)

    def listing(self) -> Listing:
        return Listing(self._path, tuple(self._schemas))

    def faults(self, shard: Shard, portions: dict[int, int]) -> Iterator[str]:
        """What is wrong with a portion; `portions` learns its problems."""
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
        wanted = problems_in(shard.portion, self.manifest)
        if not shard.problems == completions.num_rows == wanted:
            yield f"it has {completions.num_rows} completions, listed are {shard.problems}, a whole one has {wanted}"
        for problem in completions["problem"].to_pylist():
            if portions.setdefault(problem, shard.portion) != shard.portion:
                yield f"problem {problem} is in portion {portions[problem]} too"

    def unfinished(self, finished: int) -> list[str]:
        """Temporary files, and those of the portion that was being finished."""
        temporary = {path.relative_to(self._path).as_posix() for path in leftovers(self._path)}
        return sorted(temporary | self._unlisted(finished) & self._portion(finished))

    def strangers(self, finished: int) -> list[str]:
        strange = self._unlisted(finished) - self._portion(finished)
        return [f"{name} is not listed, but whoever reads *.parquet takes it for a shard" for name in sorted(strange)]

    def _unlisted(self, finished: int) -> set[str]:
        there = {path.relative_to(self._path).as_posix() for path in self._path.glob("*/*.parquet")}
        return there.difference(*(self._portion(portion) for portion in range(finished)))

    def _portion(self, number: int) -> set[str]:
        return {file_of(table, number) for table in self._schemas}
