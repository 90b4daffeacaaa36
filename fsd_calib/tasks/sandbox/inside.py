"""What runs first in the sandbox: lowers its own limits, runs the program that it is given, and reports its end.

It is no module of the package: `sandbox_command` hands its text to the interpreter in the sandbox. Limits are set here
since the number of processes is counted in each user namespace. Hard limits cannot be raised again without privileges,
and the sandbox has none: the one to mount /tmp, whose number of files bubblewrap cannot limit, is given up first.

The report is `+`, written before the program starts, and after its last line a secret that came with it. A program that
exits, by `sys.exit` or `os._exit`, or prints what it likes, reports no success. One that searches the interpreter's
frames for the secret can, so tests that decide a grade are a program of their own where that is possible.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys
import types

_NOBODY = 65534  # who one is in a sandbox
_NOSUID, _NODEV = 2, 4  # <linux/mount.h>
_CAPABILITIES = 0x20080522  # version 3 of <linux/capability.h>


def main(report: int, cpu: int, memory: int, disk: int, names: int, threads: int, files: int, *pipes: int) -> None:
    """Runs the program on stdin, whose first line is the secret.

    Args:
        pipes: What it reads of another program, and writes to it; it finds both in `PIPES`.
    """
    secret, _, program = sys.stdin.buffer.read().partition(b"\n")
    os.close(0)  # else the secret could be read again
    os.open("/dev/null", os.O_RDONLY)
    _make_tmp(disk, names)
    for limit, value in (
        (resource.RLIMIT_CPU, cpu),
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, disk),
        (resource.RLIMIT_NPROC, threads),
        (resource.RLIMIT_NOFILE, files),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (value, value))
    module = types.ModuleType("program")  # whose `__main__` blocks do not run
    sys.modules["program"] = module  # dataclasses look their module up
    module.__dict__["PIPES"] = pipes
    write, end, complain = os.write, os._exit, sys.__excepthook__  # the program may replace them
    write(report, b"+")
    try:
        exec(compile(program, "program.py", "exec"), module.__dict__)
    except BaseException:
        try:
            complain(*sys.exc_info())
        finally:
            end(1)  # also where the message does not fit into the memory left
    write(report, secret)
    end(0)  # neither threads nor exit handlers of the program go on


def _make_tmp(disk: int, names: int) -> None:
    """Mounts a /tmp of limited size, and gives up all privileges.

    Where the system lets nobody mount, the folder below it stays, to which nobody writes.
    """
    libc = ctypes.CDLL(None)
    if os.getuid() == _NOBODY:  # never outside of a sandbox
        options = f"size={disk},nr_inodes={names},mode=0700".encode()
        libc.mount(b"tmpfs", b"/tmp", b"tmpfs", _NOSUID | _NODEV, options)
    if libc.capset((ctypes.c_uint32 * 2)(_CAPABILITIES, 0), (ctypes.c_uint32 * 6)()) != 0:
        os._exit(1)
    os.chdir("/tmp")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
