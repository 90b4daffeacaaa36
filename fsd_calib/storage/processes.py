"""Identities of processes, and whether the process that left a record may still be running."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Hashable, Mapping
from functools import cache
from pathlib import Path
from typing import Any


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
