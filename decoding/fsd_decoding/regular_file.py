"""Regular files only: a FIFO or a device may keep its reader waiting for ever, or never end, and a link may lead who
writes to somebody's file."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import IO


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
