"""Takes over ledgers of schema 1, which lay in the cache folder and counted attempts by task, target and draft."""

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
    sound,
)
from fsd_calib.storage.sqlite_file import DamageError, Schema, taken_over

_SCHEMA = Schema(WHAT, APPLICATION, 1, "", SETTINGS, CHECK)


def take_over(path: Path, file: LedgerFile) -> bool:
    """Merges the rows of a ledger of schema 1 into `file` and renames it; False: there is none at `path`.

    What was tuned on stays so. Attempts keep their numbers and verdicts, and count for every later one with the same
    target. A process killed in between leaves the ledger where it was; taken over again, no row
    is there twice.

    Raises:
        UsageError: the ledger is damaged, or cannot be read and renamed.
    """
    with damage_refused(path, "--cache"), taken_over(path, _SCHEMA) as earlier:
        if earlier is None:
            return False
        tuned, attempts = list(_tuned(earlier)), list(_attempts(earlier))
        with file.alone():
            _merge_tuned(tuned, file)
            _merge_attempts(attempts, file)
    return True


def _merge_tuned(tuned: Sequence[tuple[str, Numbers]], file: LedgerFile) -> None:
    for family, problems in tuned:
        new = problems[~known(problems, file.tuned(family))]
        if len(new):
            file.add_tuned(family, new)


def _merge_attempts(attempts: Sequence[Entry], file: LedgerFile) -> None:
    """Of one that is there already, a verdict that came since is all there is to add."""
    there = {entry.origin: entry for family in {e.family for e in attempts} for entry in file.attempts(family)}
    for entry in attempts:
        same = there.get(entry.origin)
        if same is None:
            file.add_attempt(entry)
        elif same.verdict is None and entry.verdict is not None:
            file.change_attempt(replace(same, verdict=entry.verdict))


def _tuned(earlier: sqlite3.Connection) -> Iterator[tuple[str, Numbers]]:
    for row in earlier.execute("SELECT family, ids, digest FROM tuned ORDER BY rowid"):
        family, ids = sound(row)
        yield _target(family), _problems(ids)


def _attempts(earlier: sqlite3.Connection) -> Iterator[Entry]:
    columns = "family, ids, frozen, number, verdict, digest"
    for row in earlier.execute(f"SELECT {columns} FROM attempts ORDER BY place"):
        family, ids, frozen, number, verdict = sound(row)
        origin = row_digest(family, ids, frozen)  # what made an attempt another one then
        yield Entry(_target(family), _problems(ids), frozen, number, verdict=verdict, origin=origin)


def _target(family: str) -> str:
    """The fingerprint, of a task's name and both models'."""
    try:
        _, target, _ = json.loads(family)
    except ValueError as error:
        raise DamageError("a family is not of a task and two models") from error
    return str(target)


def _problems(ids: bytes) -> Numbers:
    return as_set(numbers(ById(one) for one in np.frombuffer(ids, np.int64).tolist()))
