"""Writing of a page's files, whole or not at all."""

from __future__ import annotations

from pathlib import Path

from fsd_decoding.atomic_files import atomic_write
from fsd_decoding.errors import UsageError


def write(path: Path, content: bytes) -> Path:
    """Writes a file, with its folders, and returns its path.

    Raises:
        UsageError: It cannot be written, or something that is no file has its name.
    """
    if path.is_dir():
        raise UsageError(f"{str(path)!r} is a folder; name a file in it, such as {str(path / 'page.html')!r}")
    if path.exists() and not path.is_file():  # a device or a pipe, which the file would replace
        raise UsageError(f"{str(path)!r} is a device or a pipe, and a page is written to a file; name another")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            file.write(content)
    except OSError as error:
        raise UsageError(
            f"{str(path)!r} cannot be written: {error.strerror or error}; free space or choose another folder"
        ) from error
    return path
