"""Optuna's journal file, such that damage is noticed: every line carries a checksum.

Knows lines and locks. A damaged journal is set aside under another name and begun anew: results come again from the
result cache.
"""

from __future__ import annotations

import json
import warnings
import zlib
from collections.abc import Generator
from pathlib import Path
from typing import Any

from filelock import FileLock
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from fsd_decoding.errors import UsageError

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
