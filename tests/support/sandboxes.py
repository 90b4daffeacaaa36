"""The sandbox for tests: small limits, and whether processes are left of a run."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

from fsd_calib.tasks.grading.python_tests import parts_of, shared_program
from fsd_calib.tasks.sandbox.command import Limits, Outcome
from fsd_calib.tasks.sandbox.run import find_bwrap, run_python
from fsd_common.errors import UsageError
from lib.attacks.programs import PROBLEM

_MIB = 1 << 20
SMALL = Limits(wall=30.0, cpu=1, memory=128 * _MIB, disk=4 * _MIB, output=64 << 10, threads=8, files=32)


def skip_without_sandbox() -> None:
    """Skips a test on a machine whose bubblewrap cannot make namespaces, with the reason."""
    if reason := _no_namespaces():
        pytest.skip(reason)


@cache
def _no_namespaces() -> str:
    """Why there are none; found out without our own check, since a test must fail where that is wrong."""
    try:
        bwrap = find_bwrap()
    except UsageError as error:
        return str(error)
    command: list[str] = [
        str(bwrap),
        "--unshare-all",
        "--unshare-user",
        "--ro-bind",
        "/",
        "/",
        "--",
        sys.executable,
        "-c",
        "",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stderr.strip() or "bubblewrap fails" if done.returncode else ""


def outcome_of(body: str, limits: Limits = SMALL) -> Outcome:
    """Runs the tests of `PROBLEM` on a function whose body is this code, with its lines at the left margin, in one
    interpreter."""
    indented = "".join(f"    {line}\n" for line in body.strip().splitlines())
    return run_python(shared_program(parts_of(PROBLEM, indented)), limits)


def soon_gone(word: str) -> bool:
    """Whether no process on this machine has this word in its command line, or none 5 seconds later.

    The kernel ends what is in a sandbox when bubblewrap is killed, but does not wait for it.
    """
    deadline = time.monotonic() + 5
    while found := any(word in line for line in _command_lines()):
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    return not found


def _command_lines() -> Iterator[str]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            yield path.read_bytes().decode(errors="replace")
