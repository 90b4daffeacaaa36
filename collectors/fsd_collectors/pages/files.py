"""Writing of a page's files, whole or not at all."""

from __future__ import annotations

from pathlib import Path

from fsd_collectors.store.folder import atomic_write
from fsd_decoding.errors import UsageError


def write(path: Path, content: bytes) -> Path:
    """Writes a file, with its folders, and returns its path. Raises UsageError where it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            file.write(content)
    except OSError as error:
        raise UsageError(
            f"{str(path)!r} cannot be written: {error.strerror or error}; free space or choose another folder"
        ) from error
    return path
