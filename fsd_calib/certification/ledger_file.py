"""The ledger's SQLite file: rows with a digest of their values, changed in one transaction at a time.

Problems are identified by two numbers each, the id and the content key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fsd_calib.storage.sqlite_file import DamageError, Schema, VersionError, open_database, translate_errors
from fsd_common.errors import UsageError

Numbers = NDArray[np.int64]  # (n, 2): id and key of each problem


class Numbered(Protocol):
    """A problem with its numbers.

    Attributes:
        id: Hash of the raw content.
        key: Hash of the normalised content: problems with the same key are the same problem.
    """

    @property
    def id(self) -> int: ...

    @property
    def key(self) -> int: ...


def numbers(problems: Iterable[Numbered]) -> Numbers:
    """Returns the numbers of problems, (n, 2), in their order."""
    return np.array([(problem.id, problem.key) for problem in problems], np.int64).reshape(-1, 2)


def as_set(pairs: Numbers) -> Numbers:
    """Returns each problem once, sorted, so that equal sets are equal arrays."""
    return np.unique(pairs, axis=0)


def known(requested: Numbers, recorded: Numbers) -> NDArray[np.bool_]:
    """Returns, (n,), whether each problem is among the recorded ones, by its key.

    Ids identify nothing, since another task may number its problems from 0 as well.
    """
    return np.isin(requested[:, 1], recorded[:, 1])


_COLUMNS = {
    "tuned": {"family": "TEXT", "problems": "BLOB"},
    "attempts": {"family": "TEXT", "problems": "BLOB", "frozen": "TEXT", "number": "INTEGER", "verdict": "TEXT"},
    "runs": {"name": "TEXT", "facts": "TEXT", "attempt": "INTEGER"},
}


def _table(name: str) -> str:
    columns = ", ".join(f"{column} {kind}" for column, kind in _COLUMNS[name].items())
    return f"CREATE TABLE {name} (place INTEGER PRIMARY KEY, {columns}, digest BLOB);"


_CONTINUES = "continues "

_SCHEMA = Schema(
    "ledger of attempts",
    0x6673646C,  # "fsdl"
    1,
    "".join(map(_table, _COLUMNS)),
    "PRAGMA journal_mode = DELETE; PRAGMA synchronous = FULL;",  # safe from a loss of power too
    "integrity_check",
)


@dataclass(frozen=True)
class Entry:
    """A row of the table of attempts.

    Args:
        frozen: Text of the sequence, the claim and all else that identifies the attempt.
        place: Row number, from 1, in the order in which attempts were opened.
    """

    family: str
    problems: Numbers  # (n, 2), a set
    frozen: str
    number: int
    verdict: str | None = None
    place: int = 0

    @property
    def beginning(self) -> str:
        """Begins `frozen` of the row that tests what this row's sequence goes on with."""
        return f"{_CONTINUES}{self.place}: "

    @property
    def continues(self) -> bool:
        """Whether it tests what an earlier row's sequence goes on with, and so is no attempt of its own."""
        return self.frozen.startswith(_CONTINUES)

    def stored(self) -> tuple[Any, ...]:
        """Returns the values in the order of the columns."""
        return self.family, self.problems.tobytes(), self.frozen, self.number, self.verdict


class Run(NamedTuple):
    """A calibration by its name, with the facts it needs to come to the same result again."""

    name: str
    facts: str


class LedgerFile:
    """The rows of a ledger in a file, or in memory; to be used within `naming_errors` or `transaction`.

    Raises:
        UsageError: The file is damaged or of another version, or cannot be read or written.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        with self.naming_errors():
            self._connection = open_database(path, _SCHEMA)
        try:
            with self.naming_errors():
                for table in _COLUMNS:  # verifies all digests; takes milliseconds, since the file is small
                    self._rows(table)
        except BaseException:
            self.close()
            raise

    def tuned(self, family: str) -> Numbers:
        """Returns all problems of a family that were tuned on."""
        parts = [_stored_numbers(problems) for _, _, problems in self._rows("tuned", family=family)]
        return np.concatenate([np.empty((0, 2), np.int64), *parts])

    def add_tuned(self, family: str, problems: Numbers) -> None:
        self._add("tuned", (family, problems.tobytes()))

    def attempts(self, family: str) -> list[Entry]:
        columns = ("place", *_COLUMNS["attempts"])
        rows = (dict(zip(columns, row, strict=True)) for row in self._rows("attempts", family=family))
        return [Entry(**row | {"problems": _stored_numbers(row["problems"])}) for row in rows]

    def add_attempt(self, entry: Entry) -> Entry:
        """Adds the entry, and returns it with its place."""
        return replace(entry, place=self._add("attempts", entry.stored()))

    def change_attempt(self, entry: Entry) -> None:
        """Replaces the entry at its place."""
        values, settings = entry.stored(), "".join(f"{name} = ?, " for name in _COLUMNS["attempts"])
        digest = _row_digest(entry.place, *values)
        self._connection.execute(
            f"UPDATE attempts SET {settings}digest = ? WHERE place = ?", (*values, digest, entry.place)
        )

    def runs(self, name: str) -> dict[int, Run]:
        """Returns the runs of that name by the places of their attempts, in the order in which they were added."""
        return {attempt: Run(name, facts) for _, _, facts, attempt in self._rows("runs", name=name)}

    def add_run(self, run: Run, attempt: int) -> None:
        self._add("runs", (*run, attempt))

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Opens an exclusive transaction: no other process reads or writes in between."""
        with self.naming_errors():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    @contextmanager
    def naming_errors(self) -> Iterator[None]:
        """Turns damage into a UsageError: a new ledger would not know what existing certificates rest on."""
        try:
            with translate_errors(self._path, _SCHEMA.what):
                yield
        except VersionError as other:
            raise self._refused(f"is of another version ({other}); use the fsd-calib that wrote it, or") from other
        except DamageError as damage:
            raise self._refused(f"is damaged ({damage}); restore it from a copy or, where there is none,") from damage

    def _refused(self, why: str) -> UsageError:
        return UsageError(
            f"{_SCHEMA.what} {str(self._path)!r} {why} certify on problems that were never used before, with another "
            "--state"
        )

    def close(self) -> None:
        self._connection.close()

    def _rows(self, table: str, **where: str) -> list[list[Any]]:
        """Returns verified rows in the order of their places: the place first, without the digest."""
        condition = "".join(f" WHERE {column} = ?" for column in where)
        rows = self._connection.execute(f"SELECT * FROM {table}{condition} ORDER BY place", tuple(where.values()))
        return [_verified_values(row) for row in rows]

    def _add(self, table: str, values: tuple[Any, ...]) -> int:
        ((place,),) = self._connection.execute(f"SELECT coalesce(max(place), 0) + 1 FROM {table}")
        row = (place, *values, _row_digest(place, *values))
        self._connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
        return int(place)


def _verified_values(row: tuple[Any, ...]) -> list[Any]:
    """Returns the row without its digest.

    Raises:
        DamageError: The digest is not that of the other values.
    """
    *values, digest = row
    if digest != _row_digest(*values):
        raise DamageError("an entry's digest is not that of its values")
    return values


def _row_digest(*values: Any) -> bytes:
    return hashlib.blake2b(repr(values).encode(), digest_size=16).digest()


def _stored_numbers(stored: bytes) -> Numbers:
    return np.frombuffer(stored, np.int64).reshape(-1, 2)
