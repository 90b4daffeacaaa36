"""Ledger files of schema 1, written as the version with that schema wrote them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from fsd_calib.certification.ledger_file import APPLICATION, row_digest

_TABLES = """
    CREATE TABLE tuned (family TEXT, ids BLOB, digest BLOB);
    CREATE TABLE attempts (
        place INTEGER PRIMARY KEY, family TEXT, ids BLOB, frozen TEXT, number INTEGER, verdict TEXT, digest BLOB
    );
"""

Attempt = tuple[Iterable[int], str, int, str | None]
"""Problem ids, the frozen candidates as text, attempt number and verdict."""


def write(path: Path, attempts: Sequence[Attempt] = (), tuned: Iterable[int] = (), target: str = "target") -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.executescript(f"PRAGMA application_id = {APPLICATION}; PRAGMA user_version = 1; {_TABLES} BEGIN")
    insert(connection, "tuned", target, tuned)
    for attempt in attempts:
        insert(connection, "attempts", target, *attempt)
    connection.execute("COMMIT")
    connection.close()


def insert(connection: sqlite3.Connection, table: str, target: str, ids: Iterable[int], *rest: object) -> None:
    """Inserts one row. rest: for the table `attempts`, the values after the ids."""
    values = (json.dumps(["gsm8k", target, "draft"]), np.array(sorted(ids), np.int64).tobytes(), *rest)
    columns = {"tuned": "family, ids, digest", "attempts": "family, ids, frozen, number, verdict, digest"}[table]
    marks = ", ".join("?" * (len(values) + 1))
    connection.execute(f"INSERT INTO {table} ({columns}) VALUES ({marks})", (*values, row_digest(*values)))
