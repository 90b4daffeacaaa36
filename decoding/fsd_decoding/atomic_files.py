"""Files that appear whole or not at all, whoever else writes them and whatever stands in their place."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import IO

_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{16}\.tmp", re.DOTALL)


@contextlib.contextmanager
def atomic_write(path: Path, mode: int | None = None) -> Iterator[IO[bytes]]:
    """Opens a file that gets its name only once it is complete and on the disk; on failure nothing is left.

    Until then it has a name of its own, which no other process writes to and nobody can foresee: of several that write
    one file, the last stays, whole, and a link that someone put there leads nowhere.

    Args:
        path: the file. One that is there already is replaced; a link is too, not what it leads to.
        mode: who may read and write the file, less the umask; None: those who may read and write its folder.
    """
    temporary = temporary_of(path)
    mode = os.stat(path.parent).st_mode & 0o666 if mode is None else mode
    with contextlib.ExitStack() as stack:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)  # which follows no link
        stack.callback(_remove, temporary)
        with open(descriptor, "wb") as file:
            yield file
            sync(file)
        temporary.replace(path)
        sync_folder(path.parent)


def temporary_of(path: Path) -> Path:
    """Returns a path beside a file, which is there for nobody else, for what is to get its name."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")


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


def intended_name(name: str) -> str:
    """Returns the name that a file which a killed `atomic_write` left was to get; any other file's own."""
    found = _TEMPORARY.fullmatch(name)
    return found[1] if found else name


def leftovers(folder: Path, pattern: str = "*") -> list[Path]:
    """Returns what killed writers left in a folder, and what running ones write, of files whose paths match."""
    return sorted(path for path in folder.glob(pattern) if path.is_file() and intended_name(path.name) != path.name)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):  # it has got its name, or the folder can no longer be written
        path.unlink()
