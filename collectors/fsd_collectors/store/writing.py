"""`TraceWriter`: crash-safe writing of a trace folder, by one collector at a time.

A portion's files reach the disk first, then its line in the listing: a portion counts only once it is listed.
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
from fsd_collectors.store.listing import (
    LISTING,
    LOCK,
    MANIFEST,
    Listing,
    Shard,
    file_of,
    has_no_finished_portion,
    read_manifest,
)
from fsd_collectors.store.shard_file import check_size, conform, in_words, problems_in, schemas, write_file
from fsd_common.argument_checks import check_path, named
from fsd_common.errors import UsageError
from fsd_common.files import atomic_write, intended_name, leftovers, sync_folder


class TraceWriter:
    """A context manager that begins or continues the run in `folder`; then `manifest` is the folder's.

    Once `write` has returned, its portion is kept even if the process is killed or the power fails; a portion that was
    interrupted is collected again. Memory is bounded by one portion.

    Args:
        folder: the folder.
        manifest: the facts of the run.
        option: what the user names the folder by; by default the argument `out`.

    Raises:
        UsageError: on entry or later, another collector is writing there, the folder holds another run or other files,
            or it cannot be written. Finished portions stay intact.
    """

    def __init__(self, folder: str | os.PathLike[str], manifest: Manifest, option: str | None = None) -> None:
        check_path("the folder of traces", folder)
        self.folder, self.manifest, self._option = Path(folder), manifest, option or named("out")
        self._schemas = schemas(manifest)
        self._lock = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack, _writable(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            _refuse_other_files(self.folder, self._option)
            stack.enter_context(_locked(self.folder, self._option))
            self._begin_or_continue()
            self._lock = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.close()

    @property
    def finished(self) -> int:
        """Number of finished portions, which is the index of the next one."""
        return len(self._listing.shards)

    @property
    def problems(self) -> int:
        """Number of completions in the finished portions."""
        return sum(shard.problems for shard in self._listing.shards)

    def write(self, portion: int, tables: Mapping[str, pa.Table]) -> None:
        """Writes the next portion.

        Args:
            portion: its index, which must be `finished`.
            tables: every table of the run, with the schema's columns in any order.

        Raises:
            ValueError: it is not the next portion, or has another number of completions or other columns than the run.
            UsageError: the disk is full, or the folder cannot be written any more.
        """
        rows = self._conform(portion, tables)
        with _writable(self.folder, self.finished), self._whole(portion):
            files = tuple(write_file(rows[table], self.folder, table, portion) for table in rows)
            self._listing.append(Shard(portion=portion, problems=rows["completions"].num_rows, files=files))

    @contextlib.contextmanager
    def _whole(self, portion: int) -> Iterator[None]:
        """If writing fails, removes what was written of a portion, which readers of *.parquet would take."""
        try:
            yield
        except OSError:
            with contextlib.suppress(OSError):
                self._listing.drop_torn_line()  # if it cannot be, the files stay: the line may be whole
                self._remove(portion)
            raise

    def _remove(self, portion: int) -> None:
        for table in self._schemas:
            with contextlib.suppress(OSError):
                (self.folder / file_of(table, portion)).unlink()

    def _begin_or_continue(self) -> None:
        if (self.folder / MANIFEST).exists() and not has_no_finished_portion(self.folder):
            self.manifest = self._same_run()
            self._schemas = schemas(self.manifest)
        else:
            self._begin()
        for table in self._schemas:
            (self.folder / table).mkdir(self.folder.stat().st_mode & 0o777, exist_ok=True)
        for unfinished in (*leftovers(self.folder), *leftovers(self.folder, "*/*")):
            unfinished.unlink()
        self._listing = Listing(self.folder, tuple(self._schemas))
        _touch(self.folder / LISTING)  # before the first shard: a shard without one means that the listing was lost
        sync_folder(self.folder)
        for shard in self._listing.shards:
            for entry in shard.files:
                check_size(self.folder, entry)

    def _begin(self) -> None:
        """Begins a run, replacing one without finished portions: that may have failed because of its settings."""
        for remains in self.folder.glob("*/*.parquet"):
            remains.unlink()
        with atomic_write(self.folder / MANIFEST) as file:
            file.write(self.manifest.model_dump_json(indent=2).encode() + b"\n")

    def _same_run(self) -> Manifest:
        """Returns the folder's own manifest, which names the models by where they were first loaded from.

        Raises:
            UsageError: it is of another run.
        """
        stored = read_manifest(self.folder)
        if differs := self.manifest.difference(stored):
            raise UsageError(
                f"folder {str(self.folder)!r} holds traces of another run: {differs}; choose another "
                f"{self._option}, or the settings of that run"
            )
        return stored

    def _conform(self, portion: int, tables: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
        if portion != self.finished:
            raise ValueError(f"portion {portion} does not follow the {self.finished} finished ones")
        if set(tables) != set(self._schemas):
            raise ValueError(f"tables {sorted(tables)}; a portion of this run has {sorted(self._schemas)}")
        rows = {table: conform(tables[table], schema) for table, schema in self._schemas.items()}
        actual, expected = rows["completions"].num_rows, problems_in(self.problems, self.manifest)
        if actual not in expected:
            raise ValueError(f"portion {portion} has {actual} completions; in this run it has {in_words(expected)}")
        return rows


@contextlib.contextmanager
def _locked(folder: Path, option: str) -> Iterator[None]:
    """Holds the folder's lock, which the system releases when this process ends, however it ends."""
    try:
        _touch(folder / LOCK)
        with FileLock(folder / LOCK, timeout=0):
            yield
    except Timeout as error:
        raise UsageError(
            f"folder {str(folder)!r} is being written by another collector; choose another {option}, or wait"
        ) from error


def _touch(path: Path) -> None:
    """Creates a file that may be read and written by those who may its folder, unless there is one. OSError: a link."""
    flags = os.O_CREAT | os.O_WRONLY | getattr(os, "O_NOFOLLOW", 0)
    os.close(os.open(path, flags, path.parent.stat().st_mode & 0o666))


def _refuse_other_files(folder: Path, option: str) -> None:
    other = sorted(path.name for path in folder.iterdir() if intended_name(path.name) not in (LOCK, MANIFEST))
    if other and not (folder / MANIFEST).exists():
        raise UsageError(f"folder {str(folder)!r} holds {other[0]!r} and no {MANIFEST}; choose another {option}")


@contextlib.contextmanager
def _writable(folder: Path, finished: int | None = None) -> Iterator[None]:
    """Turns errors of the operating system into a UsageError of one line."""
    try:
        yield
    except OSError as error:
        intact = "" if finished is None else f"its {finished} finished portions are intact, "
        raise UsageError(
            f"folder {str(folder)!r} cannot be written ({error.strerror or error}); {intact}free space or choose a "
            "folder that can be written, and run again"
        ) from error
