"""Ports of this machine."""

from __future__ import annotations

import socket
import subprocess
import time


def free_port() -> int:
    """Returns a port that nothing listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def answers(port: int) -> bool:
    """Whether something listens at a port."""
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def wait_for(port: int, process: subprocess.Popen[bytes], seconds: float = 60.0) -> None:
    """Waits until something listens at a port. AssertionError: the process ends before, or it takes too long."""
    until = time.monotonic() + seconds
    while not answers(port):
        assert process.poll() is None, f"{process.args!r} ended with {process.returncode}"
        assert time.monotonic() < until, f"nothing listens at {port}"
        time.sleep(0.1)
