"""The result cache: what decoding a prompt came to, for an interval of thresholds (DESIGN section 9).

Knows intervals, digests and one SQLite file that several processes may use at once. Knows nothing of decoders:
what decides a text is a `Key`, what came of it a `Result`. Losing the file loses time, and nothing else.
"""

from __future__ import annotations

import hashlib
import sqlite3
import warnings
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

from fsd_calib.measuring.cache_key import CacheKey
from fsd_calib.storage.sqlite_file import DamageError, Schema, identity, lock, opened, set_aside, translate_errors
from fsd_decoding.engine.result import Result

Value = TypeVar("Value")

_SCHEMA = Schema(
    "cache of decodings",
    0x66736463,  # "fsdc"
    1,
    """
    CREATE TABLE keys (hash BLOB PRIMARY KEY, key TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE decodings (
        key BLOB, problem INTEGER, prompt BLOB, threshold REAL, lo REAL, hi REAL,
        text TEXT, tokens INTEGER, rounds INTEGER, drafted INTEGER, accepted INTEGER, digest BLOB
    );
    CREATE INDEX decoded ON decodings (key, problem, prompt);
    """,
    # A commit is in the log, and safe from kill -9, once it returns; only a loss of power may take the last ones.
    "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;",
    "quick_check",  # 0.8 s a million rows (0.5 GB); the digests of rows are looked at when they are given out
)
_KEPT = "threshold, lo, hi, text, tokens, rounds, drafted, accepted"
_FIND = f"""
    SELECT {_KEPT}, digest FROM decodings
    WHERE key = ?1 AND problem = ?2 AND prompt = ?3
        AND (threshold IS ?4 OR (lo <= ?5 AND ?6 < hi))
    ORDER BY threshold IS ?4 DESC LIMIT 1
"""
_ADD = f"INSERT INTO decodings (key, problem, prompt, {_KEPT}, digest) VALUES ({', '.join('?' * 12)})"


class CacheQuery(NamedTuple):
    """A prompt, and the id that is the key of its noise."""

    id: int
    prompt: str


@dataclass(frozen=True)
class CachedText:
    """What a prompt became, at every threshold in [lo, hi). `threshold` None: the rule has none."""

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
        lo, hi = (_plain(end) for end in result.interval)
        counts = (result.emitted, result.rounds, result.drafted, result.accepted)
        return cls(_plain(threshold), lo, hi, result.text, *counts)


class ResultCache:
    """A cache in a file, or in memory. Every row that it gives out is bit for bit what was added.

    Where the file turns out damaged, at any time, a warning names it, it is set aside as `<name>.damaged-<n>`, and
    an empty one takes its place, for the other processes too.

    Raises:
        UsageError: the file cannot be read or written.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._open()

    def find(self, key: CacheKey, prompts: Sequence[CacheQuery], threshold: float | None) -> dict[int, CachedText]:
        """Index of a prompt -> what it becomes at `threshold`, for those that are known.

        A row answers for its own threshold, and for those that lie inside its interval by `key.margin`.
        """
        return self._on_file(lambda connection: _found(connection, key, prompts, _plain(threshold)))

    def add(self, key: CacheKey, asked: CacheQuery, threshold: float | None, result: Result) -> CachedText:
        """Keeps a result of decoding at `threshold`; once this returns, no kill takes it away."""
        kept = CachedText.of(result, threshold)
        self._on_file(lambda connection: _insert(connection, key, asked, kept))
        return kept

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _on_file(self, work: Callable[[sqlite3.Connection], Value]) -> Value:
        """Does `work` on a sound file, which may be a new one."""
        while True:
            if self._there() != self._identity:
                self.close()  # another process has set it aside
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
            self._identity = self._there()
            try:
                self._connection = opened(self._path, _SCHEMA)
            except DamageError as damage:
                self._set_aside(damage)
                continue
            self._connection.text_factory = bytes  # damaged text need not be UTF-8
            if self._there() == self._identity:
                return
            self.close()  # it was made just now, here or elsewhere: which one is open is known the next time

    def _there(self) -> tuple[int, int] | None:
        """What lies under the file's name by now."""
        with translate_errors(self._path, _SCHEMA.what):
            return identity(self._path) if self._path is not None else None

    def _set_aside(self, damage: DamageError) -> None:
        """The file found damaged, and no other: another process may have been faster."""
        path = self._path
        if path is None:
            raise damage
        with translate_errors(path, _SCHEMA.what), lock(path):
            if self._there() == self._identity is not None:
                aside = set_aside(path)
                warnings.warn(
                    f"{_SCHEMA.what} {str(path)!r} is damaged ({damage}); it is now {aside.name!r}, and a new one is "
                    "begun: what it held is decoded again",
                    stacklevel=2,
                )


def _found(
    connection: sqlite3.Connection, key: CacheKey, prompts: Sequence[CacheQuery], threshold: float | None
) -> dict[int, CachedText]:
    found = {}
    ends: tuple[float | None, float | None] = (None, None)  # nothing compares to NULL
    if threshold is not None:
        margin = key.margin(threshold)
        ends = (threshold - margin, threshold + margin)
    for index, asked in enumerate(prompts):
        place = _place(key, asked)
        row = connection.execute(_FIND, (*place, threshold, *ends)).fetchone()
        if row is not None:
            found[index] = _sound(place, row)
    return found


def _insert(connection: sqlite3.Connection, key: CacheKey, asked: CacheQuery, kept: CachedText) -> None:
    place, values = _place(key, asked), _values(kept)
    connection.execute("INSERT OR IGNORE INTO keys VALUES (?, ?)", (key.hash, key.json))
    connection.execute(_ADD, (*place, *values, _digest(place, values)))


def _place(key: CacheKey, asked: CacheQuery) -> tuple[bytes, int, bytes]:
    return key.hash, asked.id, _hash(asked.prompt.encode())


def _values(kept: CachedText) -> tuple[Any, ...]:
    return astuple(kept)


def _sound(place: tuple[bytes, int, bytes], row: tuple[Any, ...]) -> CachedText:
    """DamageError where the row is not what was added."""
    *values, digest = row
    if digest != _digest(place, values):
        raise DamageError("a row's digest is not that of its values")
    threshold, lo, hi, text, *counts = values
    return CachedText(threshold, lo, hi, text.decode(), *counts)


def _digest(place: tuple[bytes, int, bytes], values: Sequence[Any]) -> bytes:
    plain = [value.encode() if isinstance(value, str) else value for value in values]
    return _hash(repr((place, plain)).encode())


def _hash(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


def _plain(number: Any) -> Any:
    """A float that SQLite gives back as it was: it has no -0.0."""
    return None if number is None else float(number) + 0.0
