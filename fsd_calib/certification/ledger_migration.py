"""Import of ledgers of schema 1, which were kept in the cache folder and counted by task, target and draft."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fsd_calib.certification.ledger_file import (
    APPLICATION,
    CHECK,
    SETTINGS,
    WHAT,
    ById,
    Entry,
    LedgerFile,
    Numbers,
    as_set,
    damage_refused,
    known,
    numbers,
    row_digest,
    verified_values,
)
from fsd_calib.storage.sqlite_file import DamageError, Schema, take_over_database

_SCHEMA = Schema(WHAT, APPLICATION, 1, "", SETTINGS, CHECK)


def take_over(path: Path, file: LedgerFile) -> bool:
    """Merges a ledger of schema 1 into `file` and renames it; returns False where there is none at `path`.

    Problems that were tuned on remain so. Attempts keep their numbers and verdicts, and count for every later attempt
    with the same target. Where the process is killed in between, the ledger stays in place; when it is taken over
    again, no row is added twice.

    Raises:
        UsageError: The ledger is damaged, or cannot be read or renamed.
    """
    with damage_refused(path, "--cache"), take_over_database(path, _SCHEMA) as earlier:
        if earlier is None:
            return False
        tuned, attempts = list(_tuned(earlier)), list(_attempts(earlier))
        with file.transaction():
            _merge_tuned(tuned, file)
            _merge_attempts(attempts, file)
    return True


def _merge_tuned(tuned: Sequence[tuple[str, Numbers]], file: LedgerFile) -> None:
    for family, problems in tuned:
        new = problems[~known(problems, file.tuned(family))]
        if len(new):
            file.add_tuned(family, new)


def _merge_attempts(attempts: Sequence[Entry], file: LedgerFile) -> None:
    """Adds new attempts; of an existing one only a later verdict is added."""
    stored = {entry.origin: entry for family in {e.family for e in attempts} for entry in file.attempts(family)}
    for entry in attempts:
        existing = stored.get(entry.origin)
        if existing is None:
            file.add_attempt(entry)
        elif existing.verdict is None and entry.verdict is not None:
            file.change_attempt(replace(existing, verdict=entry.verdict))


def _tuned(earlier: sqlite3.Connection) -> Iterator[tuple[str, Numbers]]:
    for row in earlier.execute("SELECT family, ids, digest FROM tuned ORDER BY rowid"):
        family, ids = verified_values(row)
        yield _target(family), _problems(ids)


def _attempts(earlier: sqlite3.Connection) -> Iterator[Entry]:
    columns = "family, ids, frozen, number, verdict, digest"
    for row in earlier.execute(f"SELECT {columns} FROM attempts ORDER BY place"):
        family, ids, frozen, number, verdict = verified_values(row)
        origin = row_digest(family, ids, frozen)  # what identified an attempt in schema 1
        yield Entry(_target(family), _problems(ids), frozen, number, verdict=verdict, origin=origin)


def _target(family: str) -> str:
    """Returns the target's fingerprint, from a family of a task's name and both models."""
    try:
        _, target, _ = json.loads(family)
    except ValueError as error:
        raise DamageError("a family is not of a task and two models") from error
    return str(target)


def _problems(ids: bytes) -> Numbers:
    return as_set(numbers(ById(one) for one in np.frombuffer(ids, np.int64).tolist()))
