"""The result cache: the text decoded from a prompt, valid for an interval of thresholds.

The cache is an SQLite file that several processes may use at once. Losing it costs time only. Processes claim problems
before they decode them, and so share the work; nothing depends on claims but time: where they are lost, or a process is
wrongly taken for dead, a problem is decoded twice.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar
from uuid import uuid4

from fsd_calib.engines.base import KeyedPrompt
from fsd_calib.engines.cache_key import CacheKey
from fsd_calib.storage import (
    LOGS,
    DamageError,
    Schema,
    Watch,
    identity,
    is_alive,
    lock,
    open_database,
    this_process,
    translate_errors,
)
from fsd_common.files import set_aside
from fsd_decoding.engine.result import Result

_CLAIMS = """
    CREATE TABLE claims (
        number INTEGER PRIMARY KEY AUTOINCREMENT, key BLOB, problem INTEGER, prompt BLOB, owner BLOB,
        UNIQUE (key, problem, prompt)
    );
"""
_SILENT = 600.0  # seconds without a new claim or a finished text, of an owner that cannot be seen from here
_HUNG = 3600.0  # the same for one that is known to exist

Place = tuple[bytes, int, bytes]  # key, problem and prompt: T is left out, since a text is valid for many


class Claims:
    """This process's view of the table of claims."""

    _open: ClassVar[set[bytes]] = set()  # owners in this process

    def __init__(self) -> None:
        # With a number of its own, as two caches of one process may be used by two threads.
        self._process = this_process()
        self._own = json.dumps(self._process | {"claims": uuid4().hex}, sort_keys=True).encode()
        self._open.add(self._own)
        self._watch = Watch()

    def close(self) -> None:
        """Leaves claims that could not be dropped, as on a full disk, to whoever asks next."""
        self._open.discard(self._own)

    def is_free(self, connection: sqlite3.Connection, place: Place) -> bool:
        """Returns whether no other live process has claimed a problem."""
        found = connection.execute("SELECT owner FROM claims WHERE (key, problem, prompt) = (?, ?, ?)", place)
        return all(owner == self._own or not self._may_be_decoding(connection, owner) for (owner,) in found.fetchall())

    def take(self, connection: sqlite3.Connection, place: Place) -> None:
        """Claims a problem for this process."""
        connection.execute(
            "INSERT OR REPLACE INTO claims (key, problem, prompt, owner) VALUES (?, ?, ?, ?)", (*place, self._own)
        )

    def drop(self, connection: sqlite3.Connection, place: Place) -> None:
        """Drops the claim on a problem, whose text is cached now."""
        connection.execute("DELETE FROM claims WHERE (key, problem, prompt) = (?, ?, ?)", place)

    def drop_own(self, connection: sqlite3.Connection) -> None:
        connection.execute("DELETE FROM claims WHERE owner = ?", (self._own,))

    def _may_be_decoding(self, connection: sqlite3.Connection, owner: Any) -> bool:
        try:
            told = json.loads(owner)
            if told.items() >= self._process.items() and owner not in self._open:
                return False
            alive = is_alive(told)
        except (ValueError, TypeError, AttributeError, KeyError):  # a damaged row
            return False
        ((numbers,),) = connection.execute("SELECT sum(number) FROM claims WHERE owner = ?", (owner,))
        unchanged = self._watch.seconds_unchanged(owner, numbers)
        return alive is not False and unchanged < (_HUNG if alive else _SILENT)


Value = TypeVar("Value")

_SCHEMA = Schema(
    "cache of decodings",
    0x66736463,  # "fsdc"
    2,
    _CLAIMS
    + """
    CREATE TABLE keys (hash BLOB PRIMARY KEY, key TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE decodings (
        key BLOB, problem INTEGER, prompt BLOB, threshold REAL, lo REAL, hi REAL,
        text TEXT, tokens INTEGER, rounds INTEGER, drafted INTEGER, accepted INTEGER, digest BLOB
    );
    CREATE INDEX decoded ON decodings (key, problem, prompt);
    """,
    # Once a commit returns it is in the log and survives kill -9; only a loss of power may lose the last ones.
    "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;",
    "quick_check",  # 0.8 s per million rows (0.5 GB); the digests of rows are verified when they are read
)
_VALUES = "threshold, lo, hi, text, tokens, rounds, drafted, accepted"
_FIND = f"""
    SELECT {_VALUES}, digest FROM decodings
    WHERE key = ?1 AND problem = ?2 AND prompt = ?3
        AND (threshold IS ?4 OR (lo <= ?5 AND ?6 < hi))
    ORDER BY threshold IS ?4 DESC LIMIT 1
"""
_ADD = f"INSERT INTO decodings (key, problem, prompt, {_VALUES}, digest) VALUES ({', '.join('?' * 12)})"


@dataclass(frozen=True)
class CachedText:
    """The text of a prompt at every threshold in [lo, hi). `threshold` None: the rule has none."""

    threshold: float | None
    lo: float
    hi: float
    text: str
    tokens: int  # emitted, EOS included
    rounds: int
    drafted: int
    accepted: int

    @classmethod
    def of(cls, result: Result, threshold: float | None) -> Self:
        lo, hi = (_without_negative_zero(end) for end in result.interval)
        counts = (result.emitted, result.rounds, result.drafted, result.accepted)
        return cls(_without_negative_zero(threshold), lo, hi, result.text, *counts)


class ResultCache:
    """A cache in a file, or in memory. Rows are returned bit for bit as they were added.

    When SQLite finds the file damaged, or a row cannot be read, the file is renamed to `<name>.damaged-<n>` with a
    warning, and an empty one takes its place, for other processes too.

    Raises:
        UsageError: The file cannot be read or written.
    """

    def __init__(self, path: Path | None) -> None:
        self._path, self._claims = path, Claims()
        self._open()

    def find(self, key: CacheKey, prompts: Sequence[KeyedPrompt], threshold: float | None) -> dict[int, CachedText]:
        """Returns the cached texts at `threshold`, by the index of the prompt.

        A row is a hit for its own threshold, and for those inside its interval by at least `key.margin`.
        """
        return self._on_file(lambda connection: _find_rows(connection, key, prompts, _without_negative_zero(threshold)))

    def add(self, key: CacheKey, query: KeyedPrompt, threshold: float | None, result: Result) -> CachedText:
        """Adds the result of decoding at `threshold`; it survives a kill once this returns."""
        cached_text = CachedText.of(result, threshold)

        def insert(connection: sqlite3.Connection) -> None:
            with _transaction(connection):
                _insert(connection, key, query, cached_text)
                self._claims.drop(connection, _place(key, query))

        self._on_file(insert)
        return cached_text

    def claim(self, key: CacheKey, query: KeyedPrompt, threshold: float | None) -> bool:
        """Returns whether this process is to decode a prompt now: its text is not cached, and no other process that
        uses the file decodes it, at this or another threshold."""
        if self._path is None:
            return True

        place, at = _place(key, query), _without_negative_zero(threshold)

        def take(connection: sqlite3.Connection) -> bool:
            if not self._claims.is_free(connection, place):  # without a lock on the file
                return False
            with _transaction(connection):
                free = self._claims.is_free(connection, place) and not _find_rows(connection, key, [query], at)
                if free:
                    self._claims.take(connection, place)
            return free

        return self._on_file(take)

    def drop_claims(self) -> None:
        """Drops the claims on what this process has not decoded after all."""
        if self._path is not None:
            self._on_file(self._claims.drop_own)

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._claims.close()
        self.close()

    def _on_file(self, work: Callable[[sqlite3.Connection], Value]) -> Value:
        """Calls `work` with a connection to an intact file, which may be a new one."""
        while True:
            if self._file_identity() != self._identity:
                self.close()  # another process has renamed it
                self._open()
            try:
                with translate_errors(self._path, _SCHEMA.what):
                    return work(self._connection)
            except DamageError as damage:
                self.close()
                self._set_aside(damage)
                self._open()

    def _open(self) -> None:
        while True:
            self._identity = self._file_identity()
            try:
                self._connection = open_database(self._path, _SCHEMA)
            except DamageError as damage:
                self._set_aside(damage)
                continue
            self._connection.text_factory = bytes  # damaged text may not be UTF-8
            if self._file_identity() == self._identity:
                return
            self.close()  # it was just created, here or by another process: opens it again to know its identity

    def _file_identity(self) -> tuple[int, int] | None:
        """Returns the identity of the file that currently has this name."""
        with translate_errors(self._path, _SCHEMA.what):
            return identity(self._path) if self._path is not None else None

    def _set_aside(self, damage: DamageError) -> None:
        """Renames the damaged file, unless another process was faster."""
        path = self._path
        if path is None:
            raise damage
        with translate_errors(path, _SCHEMA.what), lock(path):
            if self._file_identity() == self._identity is not None:
                renamed = set_aside(path, LOGS)
                warnings.warn(
                    f"{_SCHEMA.what} {str(path)!r} is damaged ({damage}); it is now {renamed.name!r}, and a new one "
                    "is begun: its contents are decoded again",
                    stacklevel=2,
                )


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        if connection.in_transaction:  # some errors have ended it already
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _find_rows(
    connection: sqlite3.Connection, key: CacheKey, prompts: Sequence[KeyedPrompt], threshold: float | None
) -> dict[int, CachedText]:
    cached = {}
    ends: tuple[float | None, float | None] = (None, None)  # a comparison with NULL is never true
    if threshold is not None:
        margin = key.margin(threshold)
        ends = (threshold - margin, threshold + margin)
    for index, query in enumerate(prompts):
        place = _place(key, query)
        row = connection.execute(_FIND, (*place, threshold, *ends)).fetchone()
        if row is not None:
            cached[index] = _cached_text(place, row)
    return cached


def _insert(connection: sqlite3.Connection, key: CacheKey, query: KeyedPrompt, cached_text: CachedText) -> None:
    connection.execute("INSERT OR IGNORE INTO keys VALUES (?, ?)", (key.hash, key.json))
    place, values = _place(key, query), astuple(cached_text)
    connection.execute(_ADD, (*place, *values, _digest(place, values)))


def _place(key: CacheKey, query: KeyedPrompt) -> Place:
    return key.hash, query.id, hashlib.blake2b(query.prompt.encode(), digest_size=16).digest()


def _cached_text(place: Place, row: tuple[Any, ...]) -> CachedText:
    """Returns a row's text. DamageError: it is not as it was added, and another text may be graded otherwise."""
    threshold, lo, hi, text, *counts, digest = row
    read = (threshold, lo, hi, text.decode(errors="replace") if isinstance(text, bytes) else text, *counts)
    if digest != _digest(place, read):
        raise DamageError("a row's digest is not that of its values")
    return CachedText(*read)


def _digest(place: Place, values: tuple[Any, ...]) -> bytes:
    return hashlib.blake2b(repr((*place, *values)).encode(errors="replace"), digest_size=16).digest()


def _without_negative_zero(number: Any) -> Any:
    """Returns a float that SQLite reproduces exactly: it does not store -0.0."""
    return None if number is None else float(number) + 0.0
