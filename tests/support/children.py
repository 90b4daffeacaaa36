"""Processes for tests to kill. Forked, so that none spends its time on imports and moments fall into the work."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

_processes = multiprocessing.get_context("fork")


def begin(target: Any, *args: Any) -> tuple[Any, Connection]:
    """A process that runs `target(pipe, *args)`, and our end of the pipe."""
    ours, theirs = _processes.Pipe()
    process = _processes.Process(target=target, args=(theirs, *args), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def kill(process: Any) -> None:
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL


def rest(pipe: Connection) -> Iterator[Any]:
    """What a process that is gone had said."""
    while True:
        try:
            yield pipe.recv()
        except (EOFError, OSError):
            return
