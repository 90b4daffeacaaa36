"""The command line of bubblewrap: namespaces, files, privileges, limits and system calls that a program has."""

from __future__ import annotations

import errno
import os
import platform
import struct
import sys
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Literal, NamedTuple

_MIB = 1 << 20

Ending = Literal["passed", "failed", "killed", "wall limit", "output limit"]


class Limits(NamedTuple):
    """What one program may use; it is one process, with threads where their number can be limited.

    CPU time decides whether a program is too slow, so that a busy machine changes no verdict; the wall limit is far
    above it, and ends programs that wait.
    """

    wall: float = 30.0  # seconds
    cpu: int = 6  # seconds
    memory: int = 512 * _MIB  # bytes of address space
    disk: int = 16 * _MIB  # bytes in /tmp, and of its largest file
    names: int = 1024  # files, folders and links in /tmp
    output: int = _MIB // 4  # bytes of stdout and stderr together
    threads: int = 32
    files: int = 64  # open at once


class Outcome(NamedTuple):
    """How a run ended.

    Attributes:
        ending: "failed": it raised or exited; "killed": by a signal, as the CPU limit and a broken stack send.
        output: Its stdout and stderr, up to the limit.
    """

    ending: Ending
    output: str
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether it ran to its end without an exception."""
        return self.ending == "passed"


_NEWEST = 462  # mseal, Linux 6.10; from 424 on numbers are those of all architectures
_CLONE_THREAD = 0x10000

# (x86_64, aarch64); None: there is no such call.
_CLONE = (56, 220)
_REFUSED: dict[str, tuple[int | None, int | None]] = {
    # processes, and looking into others
    "fork": (57, None), "vfork": (58, None), "ptrace": (101, 117), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "kcmp": (312, 272), "pidfd_open": (434, 434), "pidfd_getfd": (438, 438),
    # namespaces and mounts
    "unshare": (272, 97), "setns": (308, 268), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "quotactl": (179, 60),
    "quotactl_fd": (443, 443), "fanotify_init": (300, 262),
    # sockets: not all families respect network namespaces (AF_VSOCK)
    "socket": (41, 198),
    # memory outside of the address space
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "msgget": (68, 186),
    "semget": (64, 190), "mq_open": (240, 180), "io_setup": (206, 0), "vmsplice": (278, 75),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7),
    # parts of the kernel with a history of holes
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "bpf": (321, 280),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "personality": (135, 92),
    "modify_ldt": (154, None),
    # the machine
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89),
    "syslog": (103, 116), "iopl": (172, None), "ioperm": (173, None),
}  # fmt: skip
_CLONE3 = 435  # its flags are behind a pointer, which a filter cannot follow; the C library then uses clone

_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column above, AUDIT_ARCH_*

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # BPF instructions
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # offsets in `seccomp_data`; arguments are little-endian
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000


def system_call_filter(machine: str | None = None, threads: bool = True) -> bytes | None:
    """Returns the filter for a machine, or None where this file has no numbers for it.

    Args:
        machine: As `platform.machine` names it; None: this one.
        threads: Whether a program may start any.
    """
    if (machine or platform.machine()) not in _ARCHITECTURES:
        return None
    column, audit = _ARCHITECTURES[machine or platform.machine()]
    numbers = sorted(number for pair in _REFUSED.values() if (number := pair[column]) is not None)
    refuse, missing = _ERRNO | errno.EPERM, _ERRNO | errno.ENOSYS
    lines = [
        (_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, audit), (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _NEWEST + 1), (_RETURN, 0, 0, missing),  # the x32 calls of x86_64 too
        (_EQUAL, 0, 1, _CLONE3), (_RETURN, 0, 0, missing),
    ]  # fmt: skip
    for number in numbers:
        lines += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, refuse)]
    lines += [
        (_EQUAL, 1, 0, _CLONE[column]), (_RETURN, 0, 0, _ALLOW),
        (_LOAD, 0, 0, _FIRST_ARGUMENT), (_ANY_BIT, 1, 0, _CLONE_THREAD if threads else 0),
        (_RETURN, 0, 0, refuse), (_RETURN, 0, 0, _ALLOW),
    ]  # fmt: skip
    return b"".join(struct.pack("<HBBI", *line) for line in lines)


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
    inside = (files("fsd_calib.tasks.sandbox") / "inside.py").read_text(encoding="utf-8")
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
        "--", str(python), "-s", "-P", "-S", "-B", "-u", "-X", "utf8", "-c", inside,
        *map(str, (report, limits.cpu, limits.memory, limits.disk, limits.names, threads, limits.files, *pipes)),
    ]  # fmt: skip


def _installed(folders: Iterable[str]) -> list[str]:
    """The folders of packages that someone installed, which no program sees."""
    found = {Path(os.path.realpath(folder)) for folder in folders if os.path.isdir(folder)}
    return sorted({str(each) for folder in found for each in folder.glob("python3*/*-packages") if each.is_dir()})
