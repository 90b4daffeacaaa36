"""A trace folder while it is written: one collector at a time, portion after portion, whatever happens between.

Knows the order in which things reach the disk: a portion's files first, then its line in the listing. Knows neither
how rows come about nor how they are read.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa
from filelock import FileLock, Timeout

from fsd_collectors.manifest import Manifest
from fsd_collectors.store.folder import LISTING, LOCK, MANIFEST, TEMPORARY, sync_folder, whole
from fsd_collectors.store.listing import Listing, Shard, begun_in_vain, read_manifest
from fsd_collectors.store.shard_file import check_size, write_file
from fsd_collectors.store.tables import conform, problems_in, schemas
from fsd_decoding.errors import UsageError


class TraceWriter:
    """Continues the run in `folder`, or begins it: use it in a `with`.

    A portion that `write` returned from stays, even where the process is killed or the power fails; one that it did
    not return from is collected anew. Memory is bounded by one portion.

    Raises, from `with` on:
        UsageError: another collector is at work there, the folder holds another run or other files, or it cannot
            be written. Portions finished by then are intact.
    """

    def __init__(self, folder: str | os.PathLike[str], manifest: Manifest) -> None:
        self.folder, self.manifest = Path(folder), manifest
        self._schemas = schemas(manifest)
        self._held = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack, _writable(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            _refuse_other_files(self.folder)
            stack.enter_context(_alone(self.folder))
            self._begin_or_continue()
            self._held = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.close()

    @property
    def finished(self) -> int:
        """Portions that are there, counted from the first; the next to write has this number."""
        return len(self._listing.shards)

    def write(self, portion: int, tables: Mapping[str, pa.Table]) -> None:
        """Adds the next portion: every table of the run, with the schema's columns in any order.

        Raises:
            ValueError: it is not the next portion, not its number of completions, or not the schema's columns.
            UsageError: the disk is full, or the folder cannot be written any more.
        """
        rows = self._checked(portion, tables)
        with _writable(self.folder, self.finished):
            files = tuple(write_file(rows[table], self.folder, table, portion) for table in rows)
            self._listing.append(Shard(portion=portion, problems=rows["completions"].num_rows, files=files))

    def _begin_or_continue(self) -> None:
        if (self.folder / MANIFEST).exists() and not begun_in_vain(self.folder):
            self._refuse_another_run()
        else:
            self._begin()
        for table in self._schemas:
            (self.folder / table).mkdir(exist_ok=True)
        self._listing = Listing(self.folder, tuple(self._schemas))
        (self.folder / LISTING).touch()  # before the first shard: one without it is a listing that was lost
        sync_folder(self.folder)
        for shard in self._listing.shards:
            for entry in shard.files:
                check_size(self.folder, entry)

    def _begin(self) -> None:
        """Where a run came to nothing, its settings need not be kept: it may have failed because of them."""
        for remains in self.folder.glob("*/*.parquet"):
            remains.unlink()
        with whole(self.folder / MANIFEST) as file:
            file.write(self.manifest.model_dump_json(indent=2).encode() + b"\n")

    def _refuse_another_run(self) -> None:
        if differs := self.manifest.difference(read_manifest(self.folder)):
            raise UsageError(
                f"folder {str(self.folder)!r} holds traces of another run: {differs}; choose another --out, or the "
                "settings they were collected with"
            )

    def _checked(self, portion: int, tables: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
        if portion != self.finished:
            raise ValueError(f"portion {portion} does not follow the {self.finished} finished ones")
        if set(tables) != set(self._schemas):
            raise ValueError(f"tables {sorted(tables)}; a portion of this run has {sorted(self._schemas)}")
        rows = {table: conform(tables[table], schema) for table, schema in self._schemas.items()}
        there, wanted = rows["completions"].num_rows, problems_in(portion, self.manifest)
        if there != wanted:
            raise ValueError(f"portion {portion} has {there} completions; of this run it has {wanted}")
        return rows


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Holds the folder's lock; the system lets go of it when this process ends, however it ends."""
    try:
        with FileLock(folder / LOCK, timeout=0):
            yield
    except Timeout as error:
        raise UsageError(
            f"folder {str(folder)!r} is being written by another collector; choose another --out, or wait"
        ) from error


def _refuse_other_files(folder: Path) -> None:
    ours = {LOCK, MANIFEST + TEMPORARY}
    other = sorted(path.name for path in folder.iterdir() if path.name not in ours)
    if other and MANIFEST not in other:
        raise UsageError(f"folder {str(folder)!r} holds {other[0]!r} and no {MANIFEST}; choose another --out")


@contextlib.contextmanager
def _writable(folder: Path, finished: int | None = None) -> Iterator[None]:
    """Whatever the system refuses is said in one line."""
    try:
        yield
    except OSError as error:
        intact = "" if finished is None else f"its {finished} finished portions are intact, "
        raise UsageError(
            f"folder {str(folder)!r} cannot be written ({error.strerror or error}); {intact}free space or choose a "
            "folder that can be written, and run again"
        ) from error
