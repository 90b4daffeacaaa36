"""Child processes for tests to kill.

They are forked, so that they spend no time on imports and a kill hits the work itself.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

_processes = multiprocessing.get_context("fork")


def start_process(target: Any, *args: Any) -> tuple[Any, Connection]:
    """Starts a process that runs `target(pipe, *args)`; returns it and our end of the pipe."""
    ours, theirs = _processes.Pipe()
    process = _processes.Process(target=target, args=(theirs, *args), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def kill(process: Any) -> None:
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL


def remaining_messages(pipe: Connection) -> Iterator[Any]:
    """Yields the messages that a process sent before it ended."""
    while True:
        try:
            yield pipe.recv()
        except (EOFError, OSError):
            return
