"""A server that is started for each value of its knob, and ended with all that it started."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

from fsd_calib.servers.client import Client
from fsd_common.errors import UsageError
from fsd_common.progress.base import Progress

_POLL = 0.5  # seconds between looks at a server that starts
_PATIENCE = 30.0  # seconds to end by itself
_SHOWN = 5  # lines of a log


class ServerProcess:
    """The server's process, of which there is one at a time.

    Args:
        health: An address that answers once the server is ready.
        seconds: How long a start may take.
        log: The file that it writes to, one start after the other.
    """

    def __init__(self, health: str, seconds: float, client: Client, log: Path, progress: Progress) -> None:
        self._health, self._seconds, self._client, self._log, self._progress = health, seconds, client, log, progress
        self._process: subprocess.Popen[Any] | None = None

    def start(self, command: str, what: str) -> None:
        """Starts the server by a command, in place of the one that runs, and waits until it answers.

        Args:
            what: The command, in words.

        Raises:
            UsageError: It ends, or does not answer in time, or something else answers at its address.
        """
        self.stop()
        if self._answers():
            raise UsageError(f"a server answers at {self._health} already; stop it, so that it can be started")
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                ["sh", "-c", command], stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True
            )
        began = time.monotonic()
        with self._progress.step(f"starting the server with {what}", 0):
            while not self._answers():
                if self._process.poll() is not None:
                    raise UsageError(f"the server ended while it started: {command!r:.200}; {self._end_of_log()}")
                if time.monotonic() - began > self._seconds:
                    raise UsageError(
                        f"the server did not answer at {self._health} within {self._seconds:g} s; give it more "
                        f"(seconds, beside its command); {self._end_of_log()}"
                    )
                time.sleep(_POLL)

    def stop(self) -> None:
        """Ends it, and all that it started."""
        process = self._process
        if process is None:
            return
        try:
            _signal(process, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_PATIENCE)
        finally:  # also where Ctrl-C does not wait
            _signal(process, signal.SIGKILL)
            process.wait()
            self._process = None
        until = time.monotonic() + _PATIENCE
        while self._answers() and time.monotonic() < until:  # what the shell had started is gone a little later
            time.sleep(_POLL)

    def _answers(self) -> bool:
        return self._client.run(self._client.answers(self._health))

    def _end_of_log(self) -> str:
        with self._log.open(encoding="utf-8", errors="replace") as log:
            return f"the end of {str(self._log)!r}: {' / '.join(line.strip() for line in deque(log, _SHOWN))}"


def _signal(process: subprocess.Popen[Any], number: int) -> None:
    with suppress(ProcessLookupError):  # all have ended
        os.killpg(process.pid, number)
