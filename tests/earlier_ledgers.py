"""Ledgers of schema 1, written as the version wrote them that had it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from fsd_calib.certifying.ledger_file import APPLICATION, row_digest

_TABLES = """
    CREATE TABLE tuned (family TEXT, ids BLOB, digest BLOB);
    CREATE TABLE attempts (
        place INTEGER PRIMARY KEY, family TEXT, ids BLOB, frozen TEXT, number INTEGER, verdict TEXT, digest BLOB
    );
"""

Attempt = tuple[Iterable[int], str, int, str | None]
"""Ids, what was frozen, number and verdict."""


def write(path: Path, attempts: Sequence[Attempt] = (), tuned: Iterable[int] = (), target: str = "target") -> None:
    family = json.dumps(["gsm8k", target, "draft"])
    connection = sqlite3.connect(path, isolation_level=None)
    connection.executescript(f"PRAGMA application_id = {APPLICATION}; PRAGMA user_version = 1; {_TABLES} BEGIN")
    _insert(connection, "tuned (family, ids, digest)", family, _blob(tuned))
    for ids, frozen, number, verdict in attempts:
        columns = "attempts (family, ids, frozen, number, verdict, digest)"
        _insert(connection, columns, family, _blob(ids), frozen, number, verdict)
    connection.execute("COMMIT")
    connection.close()


def _blob(ids: Iterable[int]) -> bytes:
    return np.array(sorted(ids), np.int64).tobytes()


def _insert(connection: sqlite3.Connection, columns: str, *values: object) -> None:
    marks = ", ".join("?" * (len(values) + 1))
    connection.execute(f"INSERT INTO {columns} VALUES ({marks})", (*values, row_digest(*values)))
