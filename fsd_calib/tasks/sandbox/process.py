"""Starting bubblewrap with a program, and watching it until it ends or exceeds what is limited from outside."""

from __future__ import annotations

import os
import secrets
import selectors
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, NamedTuple

from fsd_calib.tasks.sandbox.command import Ending, Limits, Outcome, sandbox_command, system_call_filter
from fsd_common.errors import UsageError

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


def run_in(bwrap: Path, program: str, limits: Limits, beside: str | None = None) -> Outcome:
    """Runs a program in the sandbox that this bubblewrap makes.

    Args:
        beside: Another program, which runs in a sandbox of its own until this one ends. Each finds in `PIPES` what it
            reads of the other, and what it writes to it.

    Raises:
        UsageError: A sandbox did not start, so that nothing is known about the program.
    """
    begun = time.monotonic()
    output, report = bytearray(), bytearray()
    with ExitStack() as running:
        pipes: list[IO[bytes]] = []
        if beside is not None:
            (its_input, to_it), (from_it, its_output) = _pipe(running), _pipe(running)
            pipes = [from_it, to_it]
            told = running.enter_context(_in_memory(b""))
            other = running.enter_context(_started(bwrap, beside, limits, [its_input, its_output], told))
        main = running.enter_context(_started(bwrap, program, limits, pipes, subprocess.PIPE))
        assert main.process.stdout is not None
        running.enter_context(main.process.stdout)
        stopped = _watch({main.process.stdout: output, main.report: report}, begun + limits.wall, limits.output)
        if beside is not None and other.process.poll() is not None and not other.report.read().startswith(_STARTED):
            told.seek(0)
            raise UsageError(_not_started(bwrap, told.read(limits.output).decode(errors="replace"), limits))
    text = output[: limits.output].decode(errors="replace")
    if not report.startswith(_STARTED):
        raise UsageError(_not_started(bwrap, text, limits))
    ending = stopped or _ending(report == _STARTED + main.secret, main.process.returncode)
    return Outcome(ending, text, time.monotonic() - begun)


class _Sandbox(NamedTuple):
    process: subprocess.Popen[bytes]
    report: IO[bytes]
    secret: bytes


@contextmanager
def _started(
    bwrap: Path, program: str, limits: Limits, pipes: Sequence[IO[bytes]], stdout: int | IO[bytes]
) -> Iterator[_Sandbox]:
    """Starts a program, to which the pipes belong from then on, and ends it."""
    secret = secrets.token_hex(16).encode()
    with ExitStack() as files:
        source = files.enter_context(_in_memory(secret + b"\n" + program.encode(errors="replace")))
        report, reporting = _pipe(files)
        process = _start(bwrap, limits, source, reporting, pipes, stdout)
        for file in (reporting, *pipes):
            file.close()
        try:
            yield _Sandbox(process, report, secret)
        finally:
            if process.poll() is None:
                process.kill()  # --die-with-parent: all that is in the sandbox goes with it
            process.wait()


def _pipe(files: ExitStack) -> tuple[IO[bytes], IO[bytes]]:
    """Returns the ends of a new pipe, to read and to write."""
    reading, writing = os.pipe()
    return (
        files.enter_context(open(reading, "rb", buffering=0)),
        files.enter_context(open(writing, "wb", buffering=0)),
    )


def _in_memory(content: bytes) -> IO[bytes]:
    """Returns a file without a place on disk, to be read from its beginning."""
    file = os.fdopen(os.memfd_create("fsd-calib"), "w+b", buffering=0)
    file.write(content)
    file.seek(0)
    return file


def _start(
    bwrap: Path, limits: Limits, source: IO[bytes], report: IO[bytes], pipes: Sequence[IO[bytes]],
    stdout: int | IO[bytes],
) -> subprocess.Popen[bytes]:  # fmt: skip
    rules = system_call_filter(threads=os.geteuid() != 0)  # the number of root's has no limit
    with ExitStack() as files:
        system_calls = None if rules is None else files.enter_context(_in_memory(rules)).fileno()
        numbers = [pipe.fileno() for pipe in pipes]
        passed = [report.fileno(), *numbers]
        try:
            return subprocess.Popen(
                sandbox_command(bwrap, limits, report.fileno(), system_calls, numbers),
                stdin=source,
                stdout=stdout,
                stderr=subprocess.STDOUT,
                pass_fds=passed if system_calls is None else [*passed, system_calls],
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
