"""The layout of a trace folder, and atomic writing of its files.

manifest.json            the facts of the run
shards.jsonl             one line for each finished portion; files it does not list do not count
tokens/00000.parquet     one file for each portion and table
completions/00000.parquet
rounds/00000.parquet     on-policy traces only, not those of serving
.lock                    held by the collector that writes to the folder
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

MANIFEST = "manifest.json"
LISTING = "shards.jsonl"
LOCK = ".lock"
TEMPORARY = ".tmp"  # suffix of a file until it is complete, so that globs of *.parquet skip it


def file_of(table: str, portion: int) -> str:
    """Returns the path of a portion's file of a table, relative to the folder."""
    return f"{table}/{portion:05d}.parquet"


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """Opens a file that gets its name only once it is complete and on the disk; on failure nothing is left."""
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        with open(temporary, "wb", opener=open_as_private_as_folder) as file:
            yield file
            sync(file)
        temporary.replace(path)
        sync_folder(path.parent)
    finally:
        with contextlib.suppress(OSError):  # the folder cannot be written, so there is no file
            temporary.unlink(missing_ok=True)


def open_as_private_as_folder(path: str, flags: int) -> int:
    """Opens a file and returns its descriptor; a new one may be read and written by those who may its folder."""
    return os.open(path, flags, os.stat(os.path.dirname(path) or ".").st_mode & 0o666)


def sync(file: IO[bytes]) -> None:
    """Flushes a file to the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Flushes a folder's entries to the disk."""
    if os.name != "posix":
        return  # other systems cannot open folders
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def leftovers(folder: Path) -> list[Path]:
    """Returns temporary files, of a collector that was killed or is still running."""
    return sorted(path for pattern in ("*", "*/*") for path in folder.glob(pattern + TEMPORARY))
