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
