"""Folders that commands write their results to: which files in them are a result's own."""

from __future__ import annotations

import re
from pathlib import Path

from fsd_collectors.store.folder import TEMPORARY
from fsd_decoding.errors import UsageError


def contents(folder: Path) -> list[Path]:
    """Returns what is in a folder, by name; nothing where there is none."""
    return sorted(folder.iterdir()) if folder.is_dir() else []


def check_own(folder: Path, own: str, result: str) -> None:
    """Checks that all files in a folder are a result's, or were about to be when a process was killed.

    Args:
        own: regular expression of the names.
        result: in words: "a predictor".

    Raises:
        UsageError: another is there.
    """
    pattern = re.compile(rf"({own})({re.escape(TEMPORARY)})?")
    if other := [path.name for path in contents(folder) if not pattern.fullmatch(path.name)]:
        raise UsageError(
            f"folder {str(folder)!r} holds {other[0]!r}, which is not a file of {result}; choose another --out"
        )
