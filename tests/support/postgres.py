"""A PostgreSQL server for one test, in its own folder; the test is skipped where a program or driver is missing."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

_DRIVERS = {"psycopg": "postgresql+psycopg", "pg8000": "postgresql+pg8000", "psycopg2": "postgresql+psycopg2"}


@dataclass(frozen=True)
class Postgres:
    url: str


@contextmanager
def start_postgres(folder: Path) -> Iterator[Postgres]:
    """Runs a server with an empty database on a free local port."""
    programs, dialect = _programs(), _dialect()
    home = folder / "postgres"
    home.mkdir()
    user = _unprivileged_user(home)
    run: dict[str, Any] = {"cwd": home, "stdout": subprocess.DEVNULL, "stderr": subprocess.STDOUT, **user}
    subprocess.run(
        [str(programs / "initdb"), "-D", str(home / "data"), "-U", "tester", "-A", "trust", "--no-sync"],
        check=True,
        **run,
    )
    port = _free_port()
    settings = ["-p", str(port), "-k", str(home), "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"]
    # A direct child, so that this process reaps it: not every machine has an init process that does.
    server = subprocess.Popen([str(programs / "postgres"), "-D", str(home / "data"), *settings], **run)
    try:
        _wait_for(server, [str(programs / "pg_isready"), "-h", "127.0.0.1", "-p", str(port), "-U", "tester"])
        yield Postgres(f"{dialect}://tester@127.0.0.1:{port}/postgres")
    finally:
        server.send_signal(signal.SIGQUIT)  # an immediate shutdown
        server.wait(60)


def _wait_for(server: subprocess.Popen[bytes], is_ready: list[str]) -> None:
    deadline = time.monotonic() + 60
    while subprocess.run(is_ready, stdout=subprocess.DEVNULL).returncode != 0:
        assert server.poll() is None, f"the server ended with {server.returncode}"
        assert time.monotonic() < deadline, "the server is not ready after a minute"
        time.sleep(0.1)


def _programs() -> Path:
    places = [Path(p).parent for p in [shutil.which("initdb")] if p]
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for place in places:
        if all((place / name).exists() for name in ("initdb", "pg_isready", "postgres")):
            return place
    pytest.skip("no PostgreSQL server is installed: initdb, pg_isready and postgres are in no known place")


def _dialect() -> str:
    for driver, dialect in _DRIVERS.items():
        if importlib.util.find_spec(driver):
            return dialect
    pytest.skip("no driver for PostgreSQL is installed: pip install 'psycopg[binary]'")


def _unprivileged_user(home: Path) -> dict[str, Any]:
    """Returns `subprocess` arguments that run the server as `nobody`, since it refuses to run as root.

    That user must own the folder and be able to reach it.
    """
    if os.getuid() != 0:
        return {}
    if not os.stat(os.devnull).st_mode & 0o002:
        pytest.skip(f"only root may write to {os.devnull} here, and a PostgreSQL server must not run as root")
    nobody = pwd.getpwnam("nobody")
    os.chown(home, nobody.pw_uid, nobody.pw_gid)
    for parent in home.parents:
        if not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o011)
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
