"""Files: written whole or not at all, read only where they are regular, for their owner alone, and named in errors."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import IO

from filelock import FileLock

from fsd_common.errors import UsageError

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


def set_aside(path: Path, tails: Sequence[str] = ("",)) -> Path:
    """Renames what is damaged to the first free `<name>.damaged-<n>`, and returns that path.

    Args:
        path: the file or folder. Processes that have it open continue to use it there.
        tails: ends of the names of what moves with it, in this order.
    """
    aside = next(new for n in count(1) if not (new := path.with_name(f"{path.name}.damaged-{n}")).exists())
    for tail in tails:
        with contextlib.suppress(FileNotFoundError):
            os.replace(f"{path}{tail}", f"{aside}{tail}")
    return aside


def foreign_name(folder: Path, ours: str) -> str | None:
    """Returns the first name in a folder that is not ours, nor of one of our files that a kill left incomplete.

    Args:
        folder: it may be missing.
        ours: regular expression of our names.
    """
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    return next((name for name in names if not re.fullmatch(ours, intended_name(name))), None)


def check_regular(path: Path) -> os.stat_result:
    """Returns the status of a regular file. Raises OSError if there is no file, or one of another kind."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return status


def read_regular(path: Path, most: int | None = None) -> bytes:
    """Returns the content of a regular file.

    Args:
        path: the file.
        most: the most bytes that are read; None: any number.

    Raises:
        OSError: it cannot be read, is of another kind, or has more bytes.
    """
    size = check_regular(path).st_size
    if most is not None and size > most:
        raise OSError(errno.EFBIG, f"it has {size:,} bytes, and at most {most:,} are read", str(path))
    return path.read_bytes()


def open_to_append(path: Path) -> IO[bytes]:
    """Opens a file to append to it, or makes it. Raises OSError if it cannot be written, or a link is in its place."""
    return open(path, "ab", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NOFOLLOW", 0), 0o666))


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


@contextmanager
def naming(what: str, path: str | Path) -> Iterator[None]:
    """Raises UsageError in place of an OSError.

    Args:
        what: the file in words.
        path: its path. A write that fails, on a full disk, does not know its file.
    """
    try:
        yield
    except OSError as error:
        place = "" if error.filename in (None, str(path)) else f" ({str(error.filename)!r})"
        raise UsageError(
            f"{what} {str(path)!r} cannot be used: {error.strerror or error}{place}; free space or give another path, "
            "and the same command resumes"
        ) from error
