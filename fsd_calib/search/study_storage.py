"""Storage of a study: a journal file, a database, or memory, and digests of the trials in it.

A journal that cannot be replayed is renamed and begun anew; the results come from the result cache again.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
from filelock import FileLock
from optuna.exceptions import StorageInternalError
from optuna.samplers import BaseSampler
from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from fsd_calib.search.storage_url import JOURNAL, check_journal, check_url, is_url, reason, without_password
from fsd_common.digests import facts_digest
from fsd_common.errors import UsageError
from fsd_common.files import naming, read_regular, set_aside

_KEY = "digest"  # of a trial, among optuna's own attributes of it


def seal(trial: Trial, value: float) -> None:
    """Adds the digest of all that a trial holds, before it ends with this value."""
    frozen = trial.storage.get_trial(trial._trial_id)
    trial.storage.set_trial_system_attr(trial._trial_id, _KEY, facts_digest(_content(frozen, value)))


def require_intact(trial: FrozenTrial) -> None:
    """Raises UsageError where a finished trial does not match its digest."""
    if trial.system_attrs.get(_KEY) != facts_digest(_content(trial, trial.value)):
        raise damaged(f"trial {trial.number}")


def damaged(what: str) -> UsageError:
    """Returns the error for a part of a study that does not match its digest."""
    return UsageError(
        f"{what} in the study's storage does not match its digest, so it was changed or damaged; restore the storage "
        "or give another one: what was decoded comes from the cache again"
    )


def _content(trial: FrozenTrial, value: float | None) -> list[Any]:
    return [trial.params, trial.user_attrs, list(trial.constraints.values()), value]


_HEARTBEAT, _GRACE = 15, 120  # seconds; a worker silent for longer is considered dead
_LARGEST = 1 << 30  # bytes of a journal
_LOCKED = 60  # seconds that SQLite waits for another process
_TRIES = 3  # two processes may create the tables at once, and one of them then fails


class LockedJournal(JournalFileBackend):
    """Optuna's journal file, whose lines are appended whole or not at all."""

    def __init__(self, path: Path) -> None:
        lock = _Lock(path)
        super().__init__(str(path), lock_obj=lock)  # type: ignore[arg-type]
        self._mutex = lock.reentrant

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Appends all of the lines or, on a full disk, none of them."""
        with naming(JOURNAL, self._file_path), self._mutex:
            size = os.path.getsize(self._file_path)
            try:
                super().append_logs(logs)
            except OSError:
                os.truncate(self._file_path, size)
                raise


class _Lock:
    """The operating system's file lock, released when its process ends; optuna's own would remain for half a minute."""

    def __init__(self, path: Path) -> None:
        self.reentrant = FileLock(f"{path}.lock")

    def acquire(self) -> bool:
        self.reentrant.acquire()
        return True

    def release(self) -> None:
        self.reentrant.release()


def open_journal(path: Path) -> JournalStorage:
    """Returns the journal, or a new one where it is damaged.

    Raises:
        UsageError: The path cannot be written, or is not of a regular file.
    """
    check_journal(path)
    with naming(JOURNAL, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):
            if path.exists() and not _is_intact(path):
                warnings.warn(
                    f"the study's journal {path} is damaged; it is now {set_aside(path)}, and the search starts over",
                    stacklevel=3,
                )
            return JournalStorage(LockedJournal(path))


def _is_intact(path: Path) -> bool:
    """Whether the journal ends with a whole line and can be replayed."""
    content = read_regular(path, _LARGEST)
    if content and not content.endswith(b"\n"):
        return False
    try:
        JournalStorage(LockedJournal(path))
    except Exception:  # optuna's replay of a damaged journal can raise nearly anything
        return False
    return True


@contextmanager
def open_study(storage: str | None, name: str, identity: Mapping[str, str], sampler: BaseSampler) -> Iterator[Study]:
    """Yields the study of that name, created where there is none; closes its storage's connections afterwards.

    Args:
        storage: None for memory, a path for a journal file, or a database URL in SQLAlchemy's form.
        identity: What must agree for a search to continue a study.

    Raises:
        UsageError: The storage cannot be opened, or the study belongs to another search.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with open_storage(storage) as backend:
        study = _create_or_load(backend, name, sampler, storage)
        _check_identity(study, identity, storage)
        yield study


def _create_or_load(backend: BaseStorage, name: str, sampler: BaseSampler, storage: str | None) -> Study:
    """Returns the study, of which all rows can be read."""
    try:
        study = optuna.create_study(
            storage=backend, study_name=name, sampler=sampler, direction="maximize", load_if_exists=True
        )
        _ = study.get_trials(deepcopy=False), study.user_attrs
    except (LookupError, TypeError, ValueError) as error:  # what optuna raises where a row is damaged
        raise _failed(storage, error) from error
    return study


def add_attributes(storage: str, name: str, attributes: Mapping[str, Any]) -> None:
    """Adds attributes to the study of that name after a search; attributes of the same names are replaced."""
    with open_storage(storage) as backend:
        study = optuna.load_study(storage=backend, study_name=name)
        for key, value in attributes.items():
            study.set_user_attr(key, value)


@contextmanager
def open_storage(storage: str | None) -> Iterator[BaseStorage]:
    """Yields a storage as `open_study` takes it, and closes its connections afterwards."""
    backend = _storage_of(storage)
    try:
        with _translated(storage):
            yield backend
    finally:
        if isinstance(backend, RDBStorage):
            backend.remove_session()
            backend.engine.dispose()


@contextmanager
def _translated(storage: str | None) -> Iterator[None]:
    """Turns errors of a database into a UsageError, and takes the one out that optuna hides.

    Where a trial's result cannot be stored, optuna raises AssertionError("Should not reach.") in its place, and where
    its state cannot be read then either, UnboundLocalError.
    """
    try:
        yield
    except (SQLAlchemyError, StorageInternalError) as error:
        raise _failed(storage, error) from error
    except (AssertionError, UnboundLocalError) as error:
        hidden = error.__context__
        if isinstance(hidden, UsageError):
            raise hidden from None
        if isinstance(hidden, SQLAlchemyError | StorageInternalError):
            raise _failed(storage, hidden) from error
        raise


def _failed(storage: str | None, error: BaseException) -> UsageError:
    why = reason(storage or "", error.__cause__ or error)
    return UsageError(
        f"the study's storage {without_password(storage)} failed ({why}); free or repair it, and the same command "
        "resumes"
    )


def _check_identity(study: Study, identity: Mapping[str, str], storage: str | None) -> None:
    for key, value in identity.items():
        stored = study.user_attrs.get(key)
        if stored is None:
            study.set_user_attr(key, value)
        elif stored != value:
            raise UsageError(
                f"the study {study.study_name!r} in {without_password(storage)} was made with another {key}: "
                f"{stored}, where this search has {value}; give another study name or storage"
            )


def _storage_of(storage: str | None) -> BaseStorage:
    if storage is None:
        return InMemoryStorage()
    return _database(storage) if is_url(storage) else open_journal(Path(storage))


def _database(url: str) -> RDBStorage:
    check_url(url)
    for attempt in range(1, _TRIES + 1):
        try:
            return _connect(url)
        except Exception as error:  # drivers raise nearly anything
            if attempt == _TRIES or not isinstance(error, SQLAlchemyError) or isinstance(error, ArgumentError):
                raise UsageError(_refusal(url, error)) from None
            time.sleep(attempt)
    raise AssertionError("unreachable")


def _connect(url: str) -> RDBStorage:
    arguments = {"connect_args": {"timeout": _LOCKED}} if make_url(url).get_backend_name() == "sqlite" else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return RDBStorage(url, engine_kwargs=arguments, heartbeat_interval=_HEARTBEAT, grace_period=_GRACE)


def _refusal(url: str, error: Exception) -> str:
    return (
        f"the study's storage {without_password(url)} cannot be opened ({reason(url, error)}); a URL is "
        "DIALECT://USER:PASSWORD@HOST/DATABASE with %40 for @ in a password: check it, and that its driver is installed"
    )


def first_recorded(study: Study, key: str, value: Any) -> Any:
    """Records a value with the study, unless one is recorded under that key; returns the recorded value.

    Of processes that record at the same time one is the first, and all return its value: a record is a trial of a study
    of its own, since every storage numbers the trials of a study one after another. JSON types only.
    """
    records = optuna.create_study(storage=study._storage, study_name=_of_records(study), load_if_exists=True)
    if all(key not in trial.user_attrs for trial in _trials_of(records)):
        attributes = {key: {"value": value, "digest": facts_digest(value)}}
        records.add_trial(create_trial(state=TrialState.FAIL, user_attrs=attributes))
    return recorded(study, key)


def recorded(study: Study, key: str) -> Any:
    """Returns the value that was recorded first under a key; None: there is none. UsageError: it is damaged."""
    try:
        records = optuna.load_study(storage=study._storage, study_name=_of_records(study))
    except KeyError:  # nothing was recorded
        return None
    found = [trial.user_attrs[key] for trial in _trials_of(records) if key in trial.user_attrs]
    match found:
        case []:
            return None
        case [{"value": value, "digest": str(digest)}, *_] if digest == facts_digest(value):
            return value
    raise damaged(f"the record {key!r}")


def _trials_of(records: Study) -> list[FrozenTrial]:
    try:
        return records.trials
    except (LookupError, TypeError, ValueError) as error:  # what optuna raises where a row is damaged
        raise StorageInternalError("a record cannot be read") from error


def _of_records(study: Study) -> str:
    return f"{study.study_name} (records)"


def agreed(storage: str | None, name: str, key: str, value: Any) -> Any:
    """Returns `first_recorded` of the study of that name; the value itself where nothing is stored."""
    if storage is None:
        return value
    with open_storage(storage) as backend:
        return first_recorded(optuna.load_study(storage=backend, study_name=name), key, value)
