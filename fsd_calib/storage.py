"""What outlasts a run: SQLite files, and whether the process that left a record may still be running.

Files are created atomically and identified by their headers; of a damaged one, whoever opened it hears (`DamageError`).
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
import sqlite3
import textwrap
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from filelock import FileLock

from fsd_common.errors import UsageError
from fsd_common.files import make_private_file, make_private_folder, private_lock, sync_folder, temporary_of
from fsd_common.terminal import visible


def this_process() -> dict[str, Any]:
    """Returns what identifies this process: its machine since the last boot, its namespace of process ids (containers
    have their own), its id and its start time."""
    return {**_place(), "process": os.getpid(), "started": _started(_status(os.getpid()))}


def is_alive(process: Mapping[str, Any]) -> bool | None:
    """Returns whether a process of `this_process` still runs; None where that cannot be seen from here.

    That is so for processes of another machine or container, for those from before the last boot (another machine may
    have the same name), and for those of other users where /proc hides them.
    """
    if any(process.get(name) != value for name, value in _place().items()):
        return None
    status = _status(process["process"])
    if status is None:
        return None if _exists(process["process"]) else False
    started = _started(status)
    return started is not None and bool(started == process["started"])


class Watch:
    """How long records have stayed as they are, as seen by this process alone: no two machines' clocks are compared."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[Hashable, tuple[object, float]] = {}

    def seconds_unchanged(self, record: Hashable, content: object) -> float:
        """Returns for how long this content was seen, at most since the first call for the record."""
        now = self._clock()
        seen, since = self._seen.setdefault(record, (content, now))
        if seen != content:
            self._seen[record] = (content, since := now)
        return now - since


@cache
def _place() -> dict[str, str | None]:
    return {"host": socket.gethostname(), "boot": _boot(), "namespace": _namespace()}


def _boot() -> str | None:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def _namespace() -> str | None:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None


def _status(process: int) -> list[str] | None:
    """Returns the fields of /proc/<id>/stat after the name, which all users may read; None: there is no such file."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def _started(status: list[str] | None) -> str | None:
    """Returns the start time, in clock ticks since boot; None: the process has ended, or that is not known."""
    return None if status is None or status[0] in "ZX" else status[19]


def _exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it belongs to another user
        return True
    return True


_SAFE = "PRAGMA journal_mode = DELETE; PRAGMA synchronous = FULL;"
_SECONDS = 60.0  # to wait for another process; each holds the file for milliseconds
_SMALLEST = 1 << 20  # bytes free; with fewer a failed write means a full disk
LOGS = ("-wal", "-shm", "-journal", "")  # the file itself last, so that a new file never meets an old log
_SYSTEM_ERRORS = {
    *(sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_AUTH),
    *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL),
    *(sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_NOLFS),
}


class DamageError(Exception):
    """The content of a file cannot be trusted; the message gives the reason in a few words."""


class VersionError(DamageError):
    """The content of a file is of another version."""


@dataclass(frozen=True)
class Schema:
    """The name and content of a kind of file. `application` and `version` are written into its header."""

    what: str
    application: int
    version: int
    tables: str  # SQL that creates them
    settings: str  # SQL for every connection
    check: str  # name of the pragma that checks the pages when a file is opened


def lock(path: Path) -> FileLock:
    """Returns a lock to hold while the file is created, opened or renamed; SQLite itself guards its use."""
    return private_lock(Path(f"{path}.lock"), _SECONDS)


def open_database(path: Path | None, schema: Schema) -> sqlite3.Connection:
    """Returns a connection in autocommit mode; `path` None: in memory. A missing file is created, atomically.

    Raises:
        DamageError: The file is not an intact one of this kind.
        UsageError: It cannot be read or written.
    """
    with translate_errors(path, schema.what):
        if path is None:
            return _create(":memory:", schema)
        make_private_folder(path.parent)
        with lock(path):
            if not path.exists():
                _refuse_link(path)
                _create_file(path, schema)
            return _check_file(path, _connect(str(path), schema), schema)


@contextmanager
def translate_errors(path: Path | None, what: str) -> Iterator[None]:
    """Turns errors of SQLite and the system into DamageError, for a bad file, or UsageError, for a failing system."""
    try:
        yield
    except sqlite3.ProgrammingError:
        raise
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
        if code & 0xFF in _SYSTEM_ERRORS and code != sqlite3.SQLITE_READONLY_DBMOVED:
            raise _unusable(path, what, _why(path, code & 0xFF, error)) from error
        raise DamageError(_shorten(error)) from error
    except UnicodeDecodeError as error:  # SQLite's message quotes a damaged schema
        raise DamageError(_shorten(error)) from error
    except OSError as error:
        raise _unusable(path, what, error.strerror or str(error)) from error


def _refuse_link(path: Path) -> None:
    """Raises OSError where a link leads nowhere, as to a disk that is not there: a new file would hide the old one."""
    if path.is_symlink():
        raise OSError(errno.ENOENT, f"it is a link to {str(path.readlink())!r:.200}, where there is no file", str(path))


def identity(path: Path) -> tuple[int, int] | None:
    """Returns a value that changes when another file takes this name; None: there is no file."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _shorten(message: object) -> str:
    """Returns a short message: SQLite quotes whole schemas, damaged bytes included, and lists a hundred faults."""
    return textwrap.shorten(visible(str(message)), 100, placeholder=" …")


def _why(path: Path | None, code: int, error: sqlite3.DatabaseError) -> str:
    """Returns the reason; on a full disk SQLite may only speak of an error of input or output."""
    vague = code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN) and path is not None and path.parent.exists()
    if code == sqlite3.SQLITE_FULL or (vague and path and shutil.disk_usage(path.parent).free < _SMALLEST):
        return f"{os.strerror(errno.ENOSPC)}: {error}"
    return str(error)


def _unusable(path: Path | None, what: str, why: str) -> UsageError:
    return UsageError(
        f"{what} {str(path)!r} cannot be used ({why}); free space or repair it, or give another path (cache, state), "
        "and the same command resumes"
    )


def _connect(name: str, schema: Schema) -> sqlite3.Connection:
    connection = sqlite3.connect(name, timeout=_SECONDS, isolation_level=None)
    try:
        connection.execute("PRAGMA cell_size_check = ON")
        connection.executescript(schema.settings)
    except BaseException:
        connection.close()
        raise
    return connection


def _create_file(path: Path, schema: Schema) -> None:
    """Creates the file under another name first, so that it is whole whenever the process is killed.

    Without a write-ahead log, whose content is moved into the file when it is closed, where SQLite reports no error.
    """
    new = temporary_of(path)
    make_private_file(new)  # SQLite gives its logs the mode of the file
    try:
        _create(str(new), replace(schema, settings=_SAFE)).close()
        os.replace(new, path)
    except BaseException:
        with suppress(OSError):
            _remove(new)
        raise
    sync_folder(path.parent)


def _remove(path: Path) -> None:
    for tail in LOGS:
        Path(f"{path}{tail}").unlink(missing_ok=True)


def _create(name: str, schema: Schema) -> sqlite3.Connection:
    connection = _connect(name, schema)
    header = f"PRAGMA application_id = {schema.application}; PRAGMA user_version = {schema.version};"
    connection.executescript(f"BEGIN; {header} {schema.tables} COMMIT;")
    return connection


def _check_file(path: Path, connection: sqlite3.Connection, schema: Schema) -> sqlite3.Connection:
    try:
        (application,), (version,) = (
            connection.execute(f"PRAGMA {mark}").fetchone() for mark in ("application_id", "user_version")
        )
        if application != schema.application:
            raise DamageError(f"it is not a {schema.what} of fsd-calib")
        if version != schema.version:
            raise VersionError(f"its schema has version {version}, and this fsd-calib reads {schema.version}")
        (page,) = connection.execute("PRAGMA page_size").fetchone()
        if path.stat().st_size % page:  # SQLite reads zeros as the rest of its last page
            raise DamageError("it ends within a page")
        (status,) = connection.execute(f"PRAGMA {schema.check}").fetchone()
        if status != "ok":
            raise DamageError(_shorten(status))
        # Fails where the file cannot be written; BEGIN alone would not.
        connection.executescript(f"BEGIN IMMEDIATE; PRAGMA user_version = {version}; ROLLBACK;")
    except BaseException:
        connection.close()
        raise
    return connection
