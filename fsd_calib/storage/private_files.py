"""Creation of files and folders that only their owner may read, whatever the umask; existing ones keep their modes."""

from __future__ import annotations

import os
from pathlib import Path

from filelock import FileLock

_OWNER_ALONE = 0o700


def make_private_folder(folder: Path) -> None:
    """Creates a folder, and those above it that are missing."""
    for path in reversed((folder, *folder.parents)):
        if not path.exists():
            path.mkdir(_OWNER_ALONE, exist_ok=True)


def make_private_file(path: Path) -> None:
    """Creates an empty file, unless there is one."""
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, _OWNER_ALONE & 0o666))


def private_lock(path: Path, timeout: float = -1) -> FileLock:
    """Returns a lock on a file, which it creates; `timeout` in seconds, -1: waits for ever."""
    make_private_file(path)
    return FileLock(path, timeout)
