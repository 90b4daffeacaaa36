"""The layout of a trace folder.

manifest.json            the facts of the run
shards.jsonl             one line for each finished portion; files it does not list do not count
tokens/00000.parquet     one file for each portion and table
completions/00000.parquet
rounds/00000.parquet     on-policy traces only, not those of serving
.lock                    held by the collector that writes to the folder
"""

from __future__ import annotations

MANIFEST = "manifest.json"
LISTING = "shards.jsonl"
LOCK = ".lock"


def file_of(table: str, portion: int) -> str:
    """Returns the path of a portion's file of a table, relative to the folder."""
    return f"{table}/{portion:05d}.parquet"
