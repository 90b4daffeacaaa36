"""Values that all processes of a study take over from the first one that records them in it."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import optuna
from optuna.storages import JournalStorage, RDBStorage
from optuna.storages._cached_storage import _CachedStorage
from optuna.storages._rdb.models import StudyUserAttributeModel
from optuna.storages._rdb.storage import _create_scoped_session
from optuna.study import Study

from fsd_calib.search.digests import damaged, digest_of
from fsd_calib.search.study import CheckedBackend, open_storage


def first_recorded(study: Study, key: str, value: Any) -> Any:
    """Records a value as an attribute of the study, unless it has that attribute; returns the recorded value.

    Of processes that record at the same time one is the first, and all return its value. JSON types only.
    """
    storage, attribute = study._storage, {"value": value, "digest": digest_of(value)}
    if isinstance(storage, _CachedStorage) and isinstance(storage._backend, RDBStorage):
        _insert(storage._backend, study._study_id, key, attribute)
    else:
        with _exclusive(storage):
            if key not in study.user_attrs:
                study.set_user_attr(key, attribute)
    return recorded(study, key)


def recorded(study: Study, key: str) -> Any:
    """Returns the value that was recorded under a key; None: there is none. UsageError: it is damaged."""
    attributes = study.user_attrs
    if key not in attributes:
        return None
    match attributes[key]:
        case {"value": value, "digest": str(digest)} if digest == digest_of(value):
            return value
    raise damaged(f"the record {key!r}")


def agreed(storage: str | None, name: str, key: str, value: Any) -> Any:
    """Returns `first_recorded` of the study of that name; the value itself where nothing is stored."""
    if storage is None:
        return value
    with open_storage(storage) as backend:
        return first_recorded(optuna.load_study(storage=backend, study_name=name), key, value)


def _insert(database: RDBStorage, study: int, key: str, value: Any) -> None:
    """Adds a row, which the database refuses where there is one; optuna's own method would replace that."""
    with _create_scoped_session(database.scoped_session, ignore_integrity_error=True) as session:
        session.add(StudyUserAttributeModel(study_id=study, key=key, value_json=json.dumps(value)))


def _exclusive(storage: Any) -> AbstractContextManager[Any]:
    """Keeps other processes from recording meanwhile; a study in memory has none."""
    if isinstance(storage, JournalStorage) and isinstance(storage._backend, CheckedBackend):
        return storage._backend.exclusive()
    return nullcontext()
