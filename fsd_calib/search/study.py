"""The study that a search writes down: where it lives, and whether it is of the same search.

Knows storages. Knows nothing of trials.
"""

from __future__ import annotations

import json
import time
import warnings
import zlib
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
from filelock import FileLock
from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import Study
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from fsd_calib.search.sampler import ProposingSampler
from fsd_decoding.errors import UsageError

# MERGED: """Optuna's journal file, such that damage is noticed: every line carries a checksum.
#
# Knows lines and locks. A damaged journal is set aside under another name and begun anew: results come again from the
# result cache.
# """


_CHECK = "check"


class DamagedError(ValueError):
    """A line is not what was written."""


class CheckedBackend(JournalFileBackend):
    """The same file with one more field a line, which Optuna's own reader ignores."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), lock_obj=_Lock(path))  # type: ignore[arg-type]

    def read_logs(self, log_number_from: int) -> Generator[dict[str, Any], None, None]:
        for log in super().read_logs(log_number_from):
            if not isinstance(log, dict) or log.pop(_CHECK, None) != _checksum(log):
                raise DamagedError("a line does not agree with its checksum")
            yield log

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        super().append_logs([log | {_CHECK: _checksum(log)} for log in logs])


class _Lock:
    """The system's own lock, which goes with the process that holds it; Optuna's would stay for half a minute."""

    def __init__(self, path: Path) -> None:
        self._lock = FileLock(f"{path}.lock")

    def acquire(self) -> bool:
        self._lock.acquire()
        return True

    def release(self) -> None:
        self._lock.release()


def open_journal(path: Path) -> JournalStorage:
    """The journal, or a new one where it is damaged.

    Raises:
        UsageError: the path cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):
            _set_aside_if_damaged(path)
            return JournalStorage(CheckedBackend(path))
    except OSError as error:
        raise UsageError(f"the study's journal {path} cannot be used: {error.strerror}; give another path") from None


def _set_aside_if_damaged(path: Path) -> None:
    if not path.exists() or _is_sound(path):
        return
    aside = next(p for n in range(1, 10**6) if not (p := path.with_name(f"{path.name}.damaged-{n}")).exists())
    path.rename(aside)
    warnings.warn(f"the study's journal {path} is damaged; it is now {aside}, and the search begins anew", stacklevel=4)


def _is_sound(path: Path) -> bool:
    """Whether it ends with a whole line and all of it can be replayed."""
    content = path.read_bytes()
    if content and not content.endswith(b"\n"):
        return False
    try:
        JournalStorage(CheckedBackend(path))
    except Exception:  # Optuna's replay has as many ways to fail as there are ways to be wrong
        return False
    return True


def _checksum(log: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(log, sort_keys=True, separators=(",", ":")).encode())


_HEARTBEAT, _GRACE = 15, 120  # seconds; a worker silent for longer is gone
_LOCKED = 60  # seconds that SQLite waits for another process
_TRIES = 3  # two processes may create the tables at once, and one of them then fails


@contextmanager
def opened_study(
    storage: str | None, name: str, identity: Mapping[str, str], sampler: ProposingSampler
) -> Iterator[Study]:
    """The study of that name, made where there is none; connections to its storage end with it.

    Args:
        storage: None for memory, a path for a journal file, or a database's URL, as SQLAlchemy takes it.
        identity: what must agree for a search to go on.

    Raises:
        UsageError: the storage cannot be opened, or the study is of another search.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with _opened(storage) as opened:
        study = optuna.create_study(
            storage=opened, study_name=name, sampler=sampler, direction="maximize", load_if_exists=True
        )
        _check_identity(study, identity, storage)
        yield study


def add_attributes(storage: str, name: str, attributes: Mapping[str, Any]) -> None:
    """To the study of that name, once a search is over; what stands under the same names is replaced."""
    with _opened(storage) as opened:
        study = optuna.load_study(storage=opened, study_name=name)
        for key, value in attributes.items():
            study.set_user_attr(key, value)


@contextmanager
def _opened(storage: str | None) -> Iterator[BaseStorage]:
    opened = _storage(storage)
    try:
        yield opened
    finally:
        if isinstance(opened, RDBStorage):
            opened.remove_session()
            opened.engine.dispose()


def _check_identity(study: Study, identity: Mapping[str, str], storage: str | None) -> None:
    for key, value in identity.items():
        known = study.user_attrs.get(key)
        if known is None:
            study.set_user_attr(key, value)
        elif known != value:
            raise UsageError(
                f"the study {study.study_name!r} in {_shown(storage)} was made with another {key}, {known}, and this "
                f"search has {value}; give another study name or storage"
            )


def _storage(storage: str | None) -> BaseStorage:
    if storage is None:
        return InMemoryStorage()
    return _database(storage) if "://" in storage else open_journal(Path(storage))


def _database(url: str) -> RDBStorage:
    for attempt in range(1, _TRIES + 1):
        try:
            return _connected(url)
        except (ArgumentError, ImportError) as error:
            raise UsageError(_refusal(url, error)) from None
        except SQLAlchemyError as error:
            if attempt == _TRIES:
                raise UsageError(_refusal(url, error)) from None
            time.sleep(attempt)
    raise AssertionError("unreachable")


def _connected(url: str) -> RDBStorage:
    arguments = {"connect_args": {"timeout": _LOCKED}} if make_url(url).get_backend_name() == "sqlite" else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return RDBStorage(url, engine_kwargs=arguments, heartbeat_interval=_HEARTBEAT, grace_period=_GRACE)


def _refusal(url: str, error: Exception) -> str:
    why = str(error).strip().splitlines()[0]
    return f"the study's storage {_shown(url)} cannot be opened ({why}); check the URL and that its driver is installed"


def _shown(storage: str | None) -> str:
    """Without its password."""
    try:
        return make_url(storage or "memory").render_as_string(hide_password=True)
    except ArgumentError:
        return str(storage)
