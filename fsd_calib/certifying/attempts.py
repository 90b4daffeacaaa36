"""The ledger of attempts to certify: how often problems were asked, and which must not be asked (DESIGN section 10).

Knows ids of problems and one SQLite file that several processes may use at once. Knows no test and no decoding. It
is no cache: whoever deletes it voids the certificates that came after those it counted.
"""

from __future__ import annotations

import hashlib
import json
import math
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from fsd_calib.sqlite_file import DamageError, Schema, errors_named, opened
from fsd_decoding.errors import UsageError

Ids = NDArray[np.int64]

_SCHEMA = Schema(
    "ledger of attempts",
    0x6673646C,  # "fsdl"
    1,
    """
    CREATE TABLE tuned (family TEXT, ids BLOB, digest BLOB);
    CREATE TABLE attempts (
        place INTEGER PRIMARY KEY, family TEXT, ids BLOB, frozen TEXT, number INTEGER, verdict TEXT, digest BLOB
    );
    """,
    "PRAGMA journal_mode = DELETE; PRAGMA synchronous = FULL;",  # safe from a loss of power too
    "integrity_check",
)


def family(task_name: str, target_fingerprint: str, draft_fingerprint: str) -> str:
    """Attempts of one family are counted together where they share problems."""
    return json.dumps([task_name, target_fingerprint, draft_fingerprint])


def attempt_level(confidence: float, number: int) -> float:
    """The level of attempt `number`: over all attempts these sum to 1 - confidence (DESIGN section 10)."""
    return (1 - confidence) * 6 / (math.pi**2 * number**2)


class _Entry(NamedTuple):
    place: int
    ids: Ids
    frozen: str
    number: int
    verdict: str | None


class Ledger:
    """A ledger in a file, or in memory for who keeps none.

    Raises:
        UsageError: the file is damaged or of another version, or it cannot be read or written.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        with self._named():
            self._connection = opened(path, _SCHEMA)
        try:
            with self._named():
                _check_entries(self._connection)
        except BaseException:
            self.close()
            raise

    def tuned_on(self, family: str, ids: Iterable[int]) -> None:
        """Remembers problems that had a say in a choice: no attempt of the family may ask them afterwards."""
        with self._alone():
            new = np.setdiff1d(_sorted(ids), self._tuned(family))
            if len(new):
                self._insert("tuned (family, ids, digest)", family, new.tobytes())

    def open(self, family: str, ids: Iterable[int], frozen: str) -> Attempt:
        """The attempt to certify `frozen`, which holds the whole sequence and the claim, on these problems.

        The same family, problems and `frozen` are the same attempt again, with its number. Another one has as its
        number 1 + how many attempts of the family asked any of the problems before.

        Raises:
            UsageError: there are no problems, or some were tuned on and no verdict was there before that.
        """
        asked = _sorted(ids)
        if not len(asked):
            raise UsageError("an attempt has 0 problems; it needs at least 1 to certify on")
        with self._alone():
            entries = self._entries(family)
            same = next((e for e in entries if e.frozen == frozen and np.array_equal(e.ids, asked)), None)
            if same is None or same.verdict is None:
                self._require_untuned(family, asked)
            if same is None:
                number = _next(entries, asked)
                place = self._insert(
                    "attempts (family, ids, frozen, number, verdict, digest)",
                    *(family, asked.tobytes(), frozen, number, None),
                )
                same = _Entry(place, asked, frozen, number, None)
        return Attempt(self, family, same)

    def next_number(self, family: str, ids: Iterable[int]) -> int:
        """The number that another attempt on these problems would have now."""
        with self._named():
            return _next(self._entries(family), _sorted(ids))

    def _decide(self, family: str, place: int, verdict: str) -> None:
        with self._alone():
            entry = next((e for e in self._entries(family) if e.place == place), None)
            if entry is None:
                raise DamageError(f"attempt {place} is gone")
            if entry.verdict is not None:
                _require_same(entry, verdict)
                return
            self._require_untuned(family, entry.ids)
            values = (family, entry.ids.tobytes(), entry.frozen, entry.number, verdict)
            self._connection.execute(
                "UPDATE attempts SET verdict = ?, digest = ? WHERE place = ?", (verdict, _digest(*values), place)
            )

    def _require_untuned(self, family: str, asked: Ids) -> None:
        tuned = np.isin(asked, self._tuned(family), assume_unique=True).sum()
        if tuned:
            raise UsageError(
                f"{tuned} of {len(asked)} certification problems were tuned on before, so they can certify nothing; "
                "leave them out, or certify on others"
            )

    def _tuned(self, family: str) -> Ids:
        """All ids of a family, sorted."""
        rows = self._connection.execute("SELECT family, ids, digest FROM tuned WHERE family = ?", (family,)).fetchall()
        parts = [_ids(_sound(row)[1]) for row in rows]
        return np.unique(np.concatenate([*parts, np.empty(0, np.int64)]))

    def _entries(self, family: str) -> list[_Entry]:
        columns = "place, family, ids, frozen, number, verdict, digest"
        rows = self._connection.execute(f"SELECT {columns} FROM attempts WHERE family = ?", (family,)).fetchall()
        sound = ((place, _sound(row)) for place, *row in rows)
        return [_Entry(place, _ids(ids), *rest) for place, (_, ids, *rest) in sound]

    def _insert(self, table: str, *values: Any) -> int:
        marks = ", ".join("?" * (len(values) + 1))
        place = self._connection.execute(f"INSERT INTO {table} VALUES ({marks})", (*values, _digest(*values))).lastrowid
        assert place is not None
        return place

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One transaction, before which no other process can have read what this one is going to change."""
        with self._named():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    @contextmanager
    def _named(self) -> Iterator[None]:
        """A damaged ledger is never begun anew: it would forget what certificates rest on."""
        try:
            with errors_named(self._path, _SCHEMA.what):
                yield
        except DamageError as damage:
            raise UsageError(
                f"{_SCHEMA.what} {str(self._path)!r} is damaged ({damage}); restore it from a copy, or, where there is "
                "none, certify on problems that were never asked, with another --cache"
            ) from damage

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Attempt:
    """One attempt on a certification part, decided once. `number`: 1 is the first on its problems."""

    def __init__(self, ledger: Ledger, family: str, entry: _Entry) -> None:
        self.number, self.verdict = entry.number, entry.verdict
        self._ledger, self._family, self._place = ledger, family, entry.place
        self._decided = False

    def delta(self, confidence: float) -> float:
        """The level to test at."""
        return attempt_level(confidence, self.number)

    def decide(self, verdict: str) -> None:
        """Records the verdict.

        Raises:
            UsageError: this was called before; the attempt was decided in another run, otherwise; or its problems
                were tuned on meanwhile.
        """
        if self._decided:
            raise UsageError(f"attempt {self.number} is decided already; another decision needs a new attempt")
        self._ledger._decide(self._family, self._place, verdict)
        self._decided, self.verdict = True, verdict


def _next(entries: Sequence[_Entry], asked: Ids) -> int:
    return 1 + int(sum(np.isin(asked, entry.ids, assume_unique=True).any() for entry in entries))


def _require_same(entry: _Entry, verdict: str) -> None:
    if entry.verdict != verdict:
        raise UsageError(
            f"attempt {entry.number} was decided before as {entry.verdict!r:.200}, now it comes to {verdict!r:.200}; "
            "the first verdict stands: change the sequence or the claim for a new attempt"
        )


def _check_entries(connection: sqlite3.Connection) -> None:
    """All of them, when a ledger is opened: milliseconds, for it is small."""
    for table, columns in (("tuned", "family, ids"), ("attempts", "family, ids, frozen, number, verdict")):
        for row in connection.execute(f"SELECT {columns}, digest FROM {table}"):
            _sound(row)


def _sound(row: Sequence[Any]) -> list[Any]:
    """The row without its digest, which must be that of the rest."""
    *values, digest = row
    if digest != _digest(*values):
        raise DamageError("an entry's digest is not that of its values")
    return values


def _digest(*values: Any) -> bytes:
    return hashlib.blake2b(repr(values).encode(), digest_size=16).digest()


def _sorted(ids: Iterable[int]) -> Ids:
    return np.unique(np.fromiter(ids, np.int64))


def _ids(stored: bytes) -> Ids:
    return np.frombuffer(stored, np.int64)
