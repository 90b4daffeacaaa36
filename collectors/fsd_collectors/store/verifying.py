"""`verify`: compares the traces in a folder with its manifest and its listing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fsd_collectors.manifest import LabelManifest, Manifest
from fsd_collectors.store.listing import FileEntry, Listing, Shard, file_of, read_manifest
from fsd_collectors.store.shard_file import (
    check_content,
    check_schema,
    check_size,
    in_words,
    problems_in,
    read_file,
    schemas,
)
from fsd_common.errors import UsageError
from fsd_common.files import leftovers

WHOSE = ("run", "problem", "split")
ORDER = ("position", "round", "draft_position")  # of the tokens


def row_faults(tables: Mapping[str, pa.Table], manifest: Manifest) -> Iterator[str]:
    """Yields the faults of one portion, one line each.

    Args:
        tables: every table of the run, with the columns `WHOSE`, and of tokens `ORDER` too.
        manifest: the run's manifest.
    """
    completions = _owners(tables["completions"])
    if len(completions) < tables["completions"].num_rows:
        yield "a problem has two completions"
    for name, table in tables.items():
        if runs := set(pc.unique(table["run"]).to_pylist()) - {manifest.run}:
            yield f"{name} has rows of run {min(runs)}, not {manifest.run}"
        if unknown := _owners(table) - completions:
            problem, split = min(unknown)
            yield f"{name} has rows of problem {problem} in the split {split}, completions has none"
    if "tokens" in tables and (broken := _out_of_place(tables["tokens"], manifest)):
        yield f"tokens has {broken} rows out of order, or rows are missing before them"


def _owners(table: pa.Table) -> set[tuple[int, str]]:
    """Returns the problems in the table, with their splits."""
    owners = table.group_by(["problem", "split"]).aggregate([])
    return set(zip(owners["problem"].to_pylist(), owners["split"].to_pylist(), strict=True))


def _out_of_place(tokens: pa.Table, manifest: Manifest) -> int:
    """Counts the rows that do not follow the row before them, or that return to an earlier completion."""
    problem = tokens["problem"].to_numpy()
    new = _changes(problem)
    scattered = int(new.sum()) - len(np.unique(problem))
    if manifest.way == "along-target":
        return scattered + _gaps(new, tokens["position"].to_numpy())
    turn = tokens["round"].to_numpy()
    backwards = ~new[1:] & (np.diff(turn) < 0)
    return scattered + int(backwards.sum()) + _gaps(new | _changes(turn), tokens["draft_position"].to_numpy())


def _changes(values: Any) -> Any:
    """Returns a mask of the rows that differ from the one before, the first row included."""
    return np.append(True, values[1:] != values[:-1])[: len(values)]


def _gaps(new: Any, place: Any) -> int:
    """Counts the rows whose place is not their distance from the last `new` row."""
    index = np.arange(len(place))
    return int((place != index - np.maximum.accumulate(np.where(new, index, 0))).sum())


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
    earlier = [0, *accumulate(shard.problems for shard in shards)][: len(shards)]
    return [
        *(f for shard, begin in zip(shards, earlier, strict=True) for f in folder.faults(shard, begin, portions)),
        *folder.unlisted_files(len(shards)),
    ]


def notes(path: str | os.PathLike[str]) -> list[str]:
    """Returns remarks on a folder that are no faults: missing portions, and files left by a killed collector.

    Raises:
        UsageError: the manifest or the listing cannot be read.
    """
    folder = _Folder(Path(path))
    shards = folder.listing().shards
    return folder.missing(shards) + [
        f"{name} is left from a collector that was killed, or is still running"
        for name in folder.unfinished(len(shards))
    ]


class _Folder:
    """A trace folder that is compared with its manifest."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.manifest = read_manifest(path)
        self._schemas = schemas(self.manifest)

    def listing(self) -> Listing:
        return Listing(self._path, tuple(self._schemas))

    def faults(self, shard: Shard, earlier: int, portions: dict[int, int]) -> Iterator[str]:
        """Yields the faults of a portion, before which `earlier` problems are listed; adds its own to `portions`."""
        damaged = [str(error) for entry in shard.files if (error := self._damage(entry))]
        if damaged:
            yield from damaged
            return
        tables = {entry.table: self._places(entry) for entry in shard.files}
        completions = tables["completions"]
        yield from (
            f"portion {shard.portion}: {fault}"
            for fault in (
                *row_faults(tables, self.manifest),
                *self._miscounted(shard, completions, earlier),
                *self._owned_twice(shard, completions, portions),
            )
        )

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

    def _miscounted(self, shard: Shard, completions: pa.Table, earlier: int) -> Iterator[str]:
        expected = problems_in(earlier, self.manifest)
        if shard.problems != completions.num_rows or shard.problems not in expected:
            yield (
                f"it has {completions.num_rows} completions, {shard.problems} are listed, and the manifest implies "
                f"{in_words(expected)}"
            )

    def _owned_twice(self, shard: Shard, completions: pa.Table, portions: dict[int, int]) -> Iterator[str]:
        for problem in completions["problem"].to_pylist():
            if portions.setdefault(problem, shard.portion) != shard.portion:
                yield f"problem {problem} is in portion {portions[problem]} too"

    def missing(self, shards: Sequence[Shard]) -> list[str]:
        """Returns a remark on what the run still lacks."""
        texts, wanted = sum(shard.problems for shard in shards), self.manifest.task.problems
        if texts == wanted:
            return []
        if self.manifest.way == "serving":
            return [f"{texts} of {wanted} texts are recorded"]
        if isinstance(self.manifest, LabelManifest):
            return [f"{texts} of {wanted} problems have been used; all of them only where the budget lasts"]
        return [f"{len(shards)} of {self.manifest.portions} portions are finished"]

    def unfinished(self, finished: int) -> list[str]:
        """Returns temporary files, and those of the portion that was being written."""
        left = (*leftovers(self._path), *leftovers(self._path, "*/*"))
        temporary = {path.relative_to(self._path).as_posix() for path in left}
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
