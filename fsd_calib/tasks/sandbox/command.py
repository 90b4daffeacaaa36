"""The command line of bubblewrap: which namespaces, files and privileges a program has.

The file system is empty but for the interpreter, its library folder and the system's libraries, all read-only, and a
/tmp of limited size, which `inside.py` mounts before it gives up the privilege to. There is no /proc, /etc or home
folder: of an interpreter below one, only its own files are there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path

from fsd_calib.tasks.sandbox.limits import Limits

_LIBRARIES = ("/usr/lib", "/usr/lib64", "/lib", "/lib64")
_NOBODY = "65534"


def sandbox_command(
    bwrap: Path, limits: Limits, report: int, system_calls: int | None, pipes: Sequence[int] = ()
) -> list[str]:
    """Returns the command that runs the program on stdin.

    Args:
        report: File descriptor for the report; see `inside.py`.
        system_calls: File descriptor of the filter of system calls; None: there is none for this machine.
        pipes: File descriptors for the program, as `PIPES`.
    """
    python = Path(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))
    prefix = Path(os.path.realpath(sys.base_prefix))
    folders = dict.fromkeys([f"{prefix}/lib", f"{prefix}/lib64", *_LIBRARIES])
    threads = limits.threads if system_calls is not None else 1  # without the filter new threads may be processes
    return [
        str(bwrap), "--unshare-all", "--unshare-user",  # the latter: never go on without a user namespace
        "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--cap-add", "CAP_SYS_ADMIN",
        "--uid", _NOBODY, "--gid", _NOBODY,
        "--hostname", "sandbox",
        "--clearenv", "--setenv", "HOME", "/tmp", "--setenv", "LD_LIBRARY_PATH", f"{prefix}/lib",
        "--setenv", "PYTHONHASHSEED", "0",  # the order of a set is part of a verdict; -I would ignore this
        *(word for folder in folders if os.path.isdir(folder) for word in ("--ro-bind", folder, folder)),
        *(word for folder in _installed(folders) for word in ("--tmpfs", folder, "--remount-ro", folder)),
        "--ro-bind", str(python), str(python), "--dev-bind", "/dev/null", "/dev/null",
        "--dir", "/tmp", "--remount-ro", "/", "--chdir", "/",
        *(() if system_calls is None else ("--seccomp", str(system_calls))),
        "--", str(python), "-s", "-P", "-S", "-B", "-u", "-X", "utf8", "-c", _inside(),
        *map(str, (report, limits.cpu, limits.memory, limits.disk, limits.names, threads, limits.files, *pipes)),
    ]  # fmt: skip


def _installed(folders: Iterable[str]) -> list[str]:
    """The folders of packages that someone installed, which no program sees."""
    found = {Path(os.path.realpath(folder)) for folder in folders if os.path.isdir(folder)}
    return sorted({str(each) for folder in found for each in folder.glob("python3*/*-packages") if each.is_dir()})


def _inside() -> str:
    return (files("fsd_calib.tasks.sandbox") / "inside.py").read_text(encoding="utf-8")
