"""SQLite files of our own: made whole, told by their marks, and moved away where they are damaged or taken over."""

from __future__ import annotations

import itertools
import os
import sqlite3
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from filelock import FileLock

from fsd_decoding.errors import UsageError

_SECONDS = 60.0  # to wait for another process, which holds the file for a millisecond
_TAILS = ("-wal", "-shm", "-journal", "")  # the file itself last: a new one must never meet an old log
_OF_THE_SYSTEM = {
    *(sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_AUTH),
    *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL),
    *(sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_NOLFS),
}


class DamageError(Exception):
    """What a file holds cannot be trusted; the message says why, in a few words."""


@dataclass(frozen=True)
class Schema:
    """What a kind of file is called and holds. `application` and `version` are written into the file."""

    what: str
    application: int
    version: int
    tables: str  # SQL that creates them
    settings: str  # SQL for every connection
    check: str  # the pragma that looks for broken pages when a file is opened


def lock(path: Path) -> FileLock:
    """Held while a file is made, opened or set aside; not while it is used, which SQLite guards itself."""
    return FileLock(f"{path}.lock", timeout=_SECONDS)


def opened(path: Path | None, schema: Schema) -> sqlite3.Connection:
    """A connection that commits every statement by itself; None: in memory. A missing file is made, whole.

    Raises:
        DamageError: the file is no sound one of this kind. UsageError: it cannot be read or written.
    """
    with translate_errors(path, schema.what):
        if path is None:
            return _made(":memory:", schema)
        path.parent.mkdir(parents=True, exist_ok=True)
        with lock(path):
            if not path.exists():
                _make(path, schema)
            return _checked(_connected(str(path), schema), schema)


@contextmanager
def taken_over(path: Path, schema: Schema) -> Iterator[sqlite3.Connection | None]:
    """A file to read once: then it is renamed to the first free `<name>.taken-over`, unless an error comes.

    Nobody can write to it meanwhile, and who has it open is refused afterwards. None: there is no such file.

    Raises:
        DamageError: the file is no sound one of this kind. UsageError: it cannot be read or renamed.
    """
    with translate_errors(path, schema.what), lock(path) if path.exists() else nullcontext():
        if not path.exists():
            yield None
            return
        with closing(_checked(_connected(str(path), schema), schema)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            _move(path, chain([f"{path}.taken-over"], (f"{path}.taken-over-{n}" for n in itertools.count(2))))
            _sync(path.parent)


@contextmanager
def translate_errors(path: Path | None, what: str) -> Iterator[None]:
    """Tells what is wrong with the file (DamageError) from what the system refuses (UsageError)."""
    try:
        yield
    except sqlite3.ProgrammingError:
        raise
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
        if code & 0xFF in _OF_THE_SYSTEM and code != sqlite3.SQLITE_READONLY_DBMOVED:
            raise _unusable(path, what, str(error)) from error
        raise DamageError(_short(error)) from error
    except OSError as error:
        raise _unusable(path, what, error.strerror or str(error)) from error


def identity(path: Path) -> tuple[int, int] | None:
    """Changes where another file takes this name; None: there is none."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def set_aside(path: Path) -> Path:
    """Moves a file to the first free `<name>.damaged-<n>`. Who has it open goes on with it there."""
    return _move(path, (f"{path}.damaged-{n}" for n in itertools.count(1)))


def _move(path: Path, names: Iterable[str]) -> Path:
    """To the first name that is free."""
    new = next(name for name in names if not os.path.exists(name))
    for tail in _TAILS:
        if os.path.exists(f"{path}{tail}"):
            os.replace(f"{path}{tail}", f"{new}{tail}")
    return Path(new)


def _sync(folder: Path) -> None:
    """Names in it outlast a loss of power."""
    opened_folder = os.open(folder, os.O_RDONLY)
    os.fsync(opened_folder)
    os.close(opened_folder)


def _short(said: object) -> str:
    """SQLite quotes a whole broken schema, and lists a hundred faults."""
    return textwrap.shorten(str(said), 100, placeholder=" …")


def _unusable(path: Path | None, what: str, why: str) -> UsageError:
    return UsageError(f"{what} {str(path)!r} cannot be used ({why}); free or repair it, or name another place")


def _connected(name: str, schema: Schema) -> sqlite3.Connection:
    connection = sqlite3.connect(name, timeout=_SECONDS, isolation_level=None)
    try:
        connection.execute("PRAGMA cell_size_check = ON")
        connection.executescript(schema.settings)
    except BaseException:
        connection.close()
        raise
    return connection


def _make(path: Path, schema: Schema) -> None:
    """Under another name first: a file of this name is whole, whenever the maker is killed."""
    new = path.with_name(f"{path.name}.new")
    for tail in _TAILS:
        Path(f"{new}{tail}").unlink(missing_ok=True)
    _made(str(new), schema).close()
    os.replace(new, path)
    _sync(path.parent)


def _made(name: str, schema: Schema) -> sqlite3.Connection:
    connection = _connected(name, schema)
    marks = f"PRAGMA application_id = {schema.application}; PRAGMA user_version = {schema.version};"
    connection.executescript(f"BEGIN; {marks} {schema.tables} COMMIT;")
    return connection


def _checked(connection: sqlite3.Connection, schema: Schema) -> sqlite3.Connection:
    try:
        (application,), (version,) = (
            connection.execute(f"PRAGMA {mark}").fetchone() for mark in ("application_id", "user_version")
        )
        if application != schema.application:
            raise DamageError(f"it is no {schema.what} of fsd-calib")
        if version != schema.version:
            raise DamageError(f"its schema has version {version}, this fsd-calib's has {schema.version}")
        (found,) = connection.execute(f"PRAGMA {schema.check}").fetchone()
        if found != "ok":
            raise DamageError(_short(found))
        # Refused where the file cannot be written; BEGIN by itself would not be.
        connection.executescript(f"BEGIN IMMEDIATE; PRAGMA user_version = {version}; ROLLBACK;")
    except BaseException:
        connection.close()
        raise
    return connection
