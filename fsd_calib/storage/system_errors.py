"""Errors of the system that name no file, or no way out, as a `UsageError` that does both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fsd_decoding.errors import UsageError


@contextmanager
def naming(what: str, path: str | Path) -> Iterator[None]:
    """Raises UsageError in place of an OSError.

    Args:
        what: the file in words.
        path: named where the error names no file: a write that fails, on a full disk, does not know its file.
    """
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"{what} {str(error.filename or path)!r} cannot be used: {error.strerror or error}; free space or give "
            "another path, and the same command resumes"
        ) from error
