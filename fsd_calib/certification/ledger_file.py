"""The ledger's file: rows that carry a digest of their values, changed in one transaction at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fsd_calib.storage.sqlite_file import DamageError, Schema, opened, translate_errors
from fsd_decoding.errors import UsageError

# MERGED: """Problems by the numbers that the ledger knows them by: two each, the id and the content key."""


Numbers = NDArray[np.int64]  # (n, 2): id and key of each problem


class Numbered(Protocol):
    """`id` is of the raw content, `key` of the normalised one: problems of one key are the same problem."""

    @property
    def id(self) -> int: ...

    @property
    def key(self) -> int: ...


class ById(NamedTuple):
    """A problem of which an id is all that was recorded. It is the key too where the text was in its normal form."""

    id: int

    @property
    def key(self) -> int:
        return self.id


def numbers(problems: Iterable[Numbered]) -> Numbers:
    """In the problems' order."""
    return np.array([(problem.id, problem.key) for problem in problems], np.int64).reshape(-1, 2)


def as_set(found: Numbers) -> Numbers:
    """Each problem once, sorted: equal sets are equal arrays."""
    return np.unique(found, axis=0)


def known(asked: Numbers, before: Numbers) -> NDArray[np.bool_]:
    """(n,): whether a problem is one of those before: by its key, or by its id where of them an id was all that was
    recorded. Ids by themselves tell nothing apart, since another task may count its problems from 0 as well."""
    return np.asarray(np.isin(asked, before[:, 1]).any(1))


WHAT = "ledger of attempts"
APPLICATION = 0x6673646C  # "fsdl"
SETTINGS = "PRAGMA journal_mode = DELETE; PRAGMA synchronous = FULL;"  # safe from a loss of power too
CHECK = "integrity_check"

_COLUMNS = {
    "tuned": {"family": "TEXT", "problems": "BLOB"},
    "attempts": {
        "family": "TEXT", "problems": "BLOB", "frozen": "TEXT", "number": "INTEGER", "verdict": "TEXT",
        "origin": "BLOB",
    },
    "runs": {"name": "TEXT", "facts": "TEXT", "attempt": "INTEGER"},
}  # fmt: skip


def _table(name: str) -> str:
    columns = ", ".join(f"{column} {kind}" for column, kind in _COLUMNS[name].items())
    return f"CREATE TABLE {name} (place INTEGER PRIMARY KEY, {columns}, digest BLOB);"


_SCHEMA = Schema(WHAT, APPLICATION, 2, "".join(map(_table, _COLUMNS)), SETTINGS, CHECK)


@dataclass(frozen=True)
class Entry:
    """One attempt.

    Args:
        frozen: the sequence, the claim and all else that makes it this attempt.
        origin: names the row that it was taken over from, if any.
        place: its row, counted from 1: attempts are in the order in which they were opened.
    """

    family: str
    problems: Numbers  # (n, 2), a set
    frozen: str
    number: int
    verdict: str | None = None
    origin: bytes | None = None
    place: int = 0

    def stored(self) -> tuple[Any, ...]:
        """In the order of the columns."""
        return (
            self.family, self.problems.tobytes(), self.frozen, self.number, self.verdict, self.origin,
        )  # fmt: skip


class Run(NamedTuple):
    """A calibration by its name, and what it must find again to come to the same end."""

    name: str
    facts: str


class LedgerFile:
    """Rows of a ledger in a file, or in memory. What reads or writes does so under `named` or `alone`.

    Raises:
        UsageError: the file is damaged or of another version, or it cannot be read or written.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        with self.named():
            self._connection = opened(path, _SCHEMA)
        try:
            with self.named():
                for table in _COLUMNS:  # milliseconds, for it is small
                    self._rows(table)
        except BaseException:
            self.close()
            raise

    def tuned(self, family: str) -> Numbers:
        """All problems of a family that were tuned on."""
        parts = [_stored_numbers(problems) for _, _, problems in self._rows("tuned", family=family)]
        return np.concatenate([np.empty((0, 2), np.int64), *parts])

    def add_tuned(self, family: str, problems: Numbers) -> None:
        self._add("tuned", (family, problems.tobytes()))

    def attempts(self, family: str) -> list[Entry]:
        columns = ("place", *_COLUMNS["attempts"])
        rows = (dict(zip(columns, row, strict=True)) for row in self._rows("attempts", family=family))
        return [Entry(**row | {"problems": _stored_numbers(row["problems"])}) for row in rows]

    def add_attempt(self, entry: Entry) -> Entry:
        """The entry with its place."""
        return replace(entry, place=self._add("attempts", entry.stored()))

    def change_attempt(self, entry: Entry) -> None:
        """At its place."""
        values, settings = entry.stored(), "".join(f"{name} = ?, " for name in _COLUMNS["attempts"])
        digest = row_digest(entry.place, *values)
        self._connection.execute(
            f"UPDATE attempts SET {settings}digest = ? WHERE place = ?", (*values, digest, entry.place)
        )

    def runs(self, name: str) -> dict[int, Run]:
        """Those of that name, by the places of the attempts that they made, in the order in which they came to them."""
        return {attempt: Run(name, facts) for _, _, facts, attempt in self._rows("runs", name=name)}

    def add_run(self, run: Run, attempt: int) -> None:
        self._add("runs", (*run, attempt))

    @contextmanager
    def alone(self) -> Iterator[None]:
        """One transaction, before which no other process can have read what this one is going to change."""
        with self.named():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    @contextmanager
    def named(self) -> Iterator[None]:
        with damage_refused(self._path, "--state"):
            yield

    def close(self) -> None:
        self._connection.close()

    def _rows(self, table: str, **where: str) -> list[list[Any]]:
        """In the order of their places, which come first; without their digests."""
        condition = "".join(f" WHERE {column} = ?" for column in where)
        rows = self._connection.execute(f"SELECT * FROM {table}{condition} ORDER BY place", tuple(where.values()))
        return [sound(row) for row in rows]

    def _add(self, table: str, values: tuple[Any, ...]) -> int:
        ((place,),) = self._connection.execute(f"SELECT coalesce(max(place), 0) + 1 FROM {table}")
        row = (place, *values, row_digest(place, *values))
        self._connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
        return int(place)


@contextmanager
def damage_refused(path: Path | None, option: str) -> Iterator[None]:
    """A damaged ledger is never begun anew: it would forget what certificates rest on. `option` says where it lies."""
    try:
        with translate_errors(path, WHAT):
            yield
    except DamageError as damage:
        raise UsageError(
            f"{WHAT} {str(path)!r} is damaged ({damage}); restore it from a copy, or, where there is none, certify on "
            f"problems that were never asked, with another {option}"
        ) from damage


def sound(row: tuple[Any, ...]) -> list[Any]:
    """The row without its digest, which must be that of the rest."""
    *values, digest = row
    if digest != row_digest(*values):
        raise DamageError("an entry's digest is not that of its values")
    return values


def row_digest(*values: Any) -> bytes:
    return hashlib.blake2b(repr(values).encode(), digest_size=16).digest()


def _stored_numbers(stored: bytes) -> Numbers:
    return np.frombuffer(stored, np.int64).reshape(-1, 2)
