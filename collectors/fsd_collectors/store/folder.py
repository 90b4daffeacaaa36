"""A trace folder: what lies where, and how a file gets there whole or not at all.

Knows names and what a file system promises. Knows nothing of what the files hold.

    manifest.json            what the run was collected from
    shards.jsonl             one line a finished portion; what it does not list does not count
    tokens/00000.parquet     one file a portion and table
    completions/00000.parquet
    rounds/00000.parquet     of runs that decoded on policy
    .lock                    held by the one collector that writes here
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
TEMPORARY = ".tmp"  # added to a name until the file is whole: globs of *.parquet pass it by


def file_of(table: str, portion: int) -> str:
    """Where a portion's rows of a table lie, relative to the folder."""
    return f"{table}/{portion:05d}.parquet"


@contextlib.contextmanager
def whole(path: Path) -> Iterator[IO[bytes]]:
    """A file to write that has its name, on the disk, only once it is complete; nothing stays of a failed one."""
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        with temporary.open("wb") as file:
            yield file
            sync(file)
        temporary.replace(path)
        sync_folder(path.parent)
    finally:
        with contextlib.suppress(OSError):  # its folder cannot be written: there is nothing to remove
            temporary.unlink(missing_ok=True)


def sync(file: IO[bytes]) -> None:
    """Returns once what was written is on the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Returns once the folder's names are on the disk."""
    if os.name != "posix":
        return  # folders cannot be opened there
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def leftovers(folder: Path) -> list[Path]:
    """Temporary files of a collector that was killed, or is at work."""
    return sorted(path for pattern in ("*", "*/*") for path in folder.glob(pattern + TEMPORARY))
