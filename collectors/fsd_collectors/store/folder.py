"""The layout of a trace folder.

manifest.json            the facts of the run
shards.jsonl             one line for each finished portion; files it does not list do not count
tokens/00000.parquet     one file for each portion and table
completions/00000.parquet
rounds/00000.parquet     on-policy traces only, not those of serving
.lock                    held by the collector that writes to the folder
"""

from __future__ import annotations

from pathlib import Path

from fsd_common.errors import UsageError
from fsd_common.files import read_regular

MANIFEST = "manifest.json"
LISTING = "shards.jsonl"
LOCK = ".lock"
_LARGEST = 1 << 28  # bytes of a file of text


def file_of(table: str, portion: int) -> str:
    """Returns the path of a portion's file of a table, relative to the folder."""
    return f"{table}/{portion:05d}.parquet"


def content_of(path: Path) -> bytes:
    """Returns what a file of the folder holds. UsageError: it cannot be read."""
    try:
        return read_regular(path, _LARGEST)
    except OSError as error:
        raise UsageError(f"folder {str(path.parent)!r}: {path.name} cannot be read ({error.strerror})") from error
