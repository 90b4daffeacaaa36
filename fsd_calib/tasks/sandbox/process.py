"""Starting bubblewrap with a program, and watching it until it ends or exceeds what is limited from outside."""

from __future__ import annotations

import os
import secrets
import selectors
import subprocess
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from fsd_calib.tasks.sandbox.command import sandbox_command
from fsd_calib.tasks.sandbox.filter import system_call_filter
from fsd_calib.tasks.sandbox.limits import Ending, Limits, Outcome
from fsd_decoding.errors import UsageError

_STARTED = b"+"
_NAMESPACES = (
    "allow it user namespaces (as root `sysctl -w user.max_user_namespaces=10000`, on Debian "
    "kernel.unprivileged_userns_clone=1, on Ubuntu kernel.apparmor_restrict_unprivileged_userns=0, in Docker "
    "`--security-opt seccomp=unconfined --security-opt apparmor=unconfined`), or take a machine that does"
)
_OTHER_PYTHON = "take a Python whose files are all in its own folder, such as the distribution's, pyenv's or uv's"
_WAYS_OUT = {  # by what is said
    "Unknown option": "update bubblewrap to 0.6 or later",
    "Exec format": "install bubblewrap anew, for this machine",
    "execvp": _OTHER_PYTHON,
    "shared libraries": _OTHER_PYTHON,
    "Python": _OTHER_PYTHON,
}


def run_in(bwrap: Path, program: str, limits: Limits) -> Outcome:
    """Runs a program in the sandbox that this bubblewrap makes.

    Raises:
        UsageError: The sandbox did not start, so that nothing is known about the program.
    """
    begun, secret = time.monotonic(), secrets.token_hex(16).encode()
    output, report = bytearray(), bytearray()
    with ExitStack() as files:
        source = files.enter_context(_in_memory(secret + b"\n" + program.encode(errors="replace")))
        reading, writing = os.pipe()
        report_file = files.enter_context(open(reading, "rb", buffering=0))
        with open(writing, "wb", buffering=0):
            process = _start(bwrap, limits, source, writing)
        assert process.stdout is not None
        files.enter_context(process.stdout)
        try:
            stopped = _watch({process.stdout: output, report_file: report}, begun + limits.wall, limits.output)
        finally:
            if process.poll() is None:
                process.kill()  # --die-with-parent: all that is in the sandbox goes with it
            process.wait()
    text = output[: limits.output].decode(errors="replace")
    if not report.startswith(_STARTED):
        raise UsageError(_not_started(bwrap, text, limits))
    ending = stopped or _ending(report == _STARTED + secret, process.returncode)
    return Outcome(ending, text, time.monotonic() - begun)


def _in_memory(content: bytes) -> IO[bytes]:
    """Returns a file without a place on disk, to be read from its beginning."""
    file = os.fdopen(os.memfd_create("fsd-calib"), "w+b", buffering=0)
    file.write(content)
    file.seek(0)
    return file


def _start(bwrap: Path, limits: Limits, source: IO[bytes], report: int) -> subprocess.Popen[bytes]:
    rules = system_call_filter()
    with ExitStack() as files:
        system_calls = None if rules is None else files.enter_context(_in_memory(rules)).fileno()
        try:
            return subprocess.Popen(
                sandbox_command(bwrap, limits, report, system_calls),
                stdin=source,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[report] if system_calls is None else [report, system_calls],
                env={},
                cwd="/",
                start_new_session=True,  # Ctrl-C is for this process; a program stopped by it would count as wrong
            )
        except OSError as error:
            raise UsageError(_not_started(bwrap, str(error), limits)) from None


def _watch(streams: Mapping[IO[bytes], bytearray], deadline: float, most: int) -> Ending | None:
    """Collects what comes until all streams end; returns the limit that was exceeded, if one was.

    The program cannot end stdout early, since bubblewrap holds it as long as it runs.
    """
    with selectors.DefaultSelector() as selector:
        for stream, collected in streams.items():
            selector.register(stream, selectors.EVENT_READ, collected)
        while selector.get_map():
            left = deadline - time.monotonic()
            if left <= 0:
                return "wall limit"
            for key, _ in selector.select(left):
                chunk = os.read(key.fd, 1 << 16)
                key.data.extend(chunk)
                if not chunk:
                    selector.unregister(key.fileobj)
                elif len(key.data) > most:
                    return "output limit"
    return None


def _ending(told: bool, status: int) -> Ending:
    if told and status == 0:
        return "passed"
    return "killed" if status < 0 or status > 128 else "failed"  # bwrap gives a signal as 128 + its number


def _not_started(bwrap: Path, said: str, limits: Limits) -> str:
    reason = " ".join(said.split())[:300] or f"nothing within {limits.wall:g} s"
    way_out = next((way for sign, way in _WAYS_OUT.items() if sign in reason), _NAMESPACES)
    return f"code sandbox: {bwrap} does not start ({reason}); {way_out}"
