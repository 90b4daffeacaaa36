"""A server of vLLM, started by the command that a profile prints, on loopback."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_STARTING = 300.0  # seconds


@dataclass(frozen=True)
class Server:
    """A running server.

    Args:
        url: where it answers.
        process: that was started; others are below it.
    """

    url: str
    process: subprocess.Popen[bytes]


@contextmanager
def serving(command: str, log: Path, more: Sequence[str] = ()) -> Iterator[Server]:
    """Runs a command of `fsd-profile vllm`, with the CPU build's way to start a server, until the block ends.

    Args:
        command: for a shell.
        log: the file that the server logs to.
        more: further options.
    """
    words = shlex.split(command.replace("\\\n", " "))
    serve = words.index("serve")
    settings = dict(word.split("=", 1) for word in words[: serve - 1])
    port = _free_port()
    options = [*words[serve + 1 :], *more, "--host", "127.0.0.1", "--port", str(port)]
    started = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", *options]
    with log.open("wb") as output:
        process = subprocess.Popen(
            started, stdout=output, stderr=output, env=os.environ | settings, start_new_session=True
        )
    server = Server(f"http://127.0.0.1:{port}", process)
    try:
        _wait(server, log)
        yield server
    finally:
        with suppress(ProcessLookupError):  # it has ended by itself
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


def memory_of(group: int) -> int:
    """Returns the resident bytes of all processes of a group, pages that they share counted once for each."""
    found = 0
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            if os.getpgid(int(status.parent.name)) == group:
                found += _resident(status.read_text())
        except (ProcessLookupError, FileNotFoundError):  # it has just ended
            continue
    return found


def _resident(status: str) -> int:
    fields = dict(line.split(":", 1) for line in status.splitlines())
    return 1024 * int(fields.get("VmRSS", "0 kB").split()[0])


def metrics_of(server: Server) -> Mapping[str, float]:
    """Returns the server's metrics by name, summed over their labels."""
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    found: dict[str, float] = {}
    for line in lines:
        if not line.startswith("#"):
            name = line.partition("{")[0].partition(" ")[0]
            found[name] = found.get(name, 0.0) + float(line.rsplit(" ", 1)[1])
    return found


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _wait(server: Server, log: Path) -> None:
    deadline = time.monotonic() + _STARTING
    while time.monotonic() < deadline and server.process.poll() is None:
        try:
            urllib.request.urlopen(f"{server.url}/health", timeout=5)
            return
        except OSError:
            time.sleep(0.5)
    raise RuntimeError(f"the server did not start; see {log}")
