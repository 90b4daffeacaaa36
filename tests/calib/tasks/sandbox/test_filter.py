"""The filter of system calls: its numbers, what it says about a call, and what the kernel does with it."""

from __future__ import annotations

import errno
import os
import re
import struct
from pathlib import Path

import pytest

from fsd_calib.tasks.sandbox import command as system_calls
from fsd_calib.tasks.sandbox.command import system_call_filter
from fsd_calib.tasks.sandbox.run import run_python
from support.sandboxes import skip_without_sandbox

MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
ALLOW, KILL, REFUSE, MISSING = 0x7FFF0000, 0x80000000, 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS
THREAD = 0x3D0F00  # the flags of clone with which the C library makes a thread


def verdict(machine: str, number: int, flags: int = 0, audit: int | None = None, threads: bool = True) -> int:
    """Runs the filter on one call, as the kernel does (linux/filter.h)."""
    program = system_call_filter(machine, threads)
    assert program is not None
    data = struct.pack("<IIQ6Q", number, MACHINES[machine] if audit is None else audit, 0, flags, 0, 0, 0, 0, 0)
    lines, at, value = list(struct.iter_unpack("<HBBI", program)), 0, 0
    while True:
        code, yes, no, k = lines[at]
        if code == 0x06:
            return int(k)
        if code == 0x20:
            (value,) = struct.unpack_from("<I", data, k)
            at += 1
        else:
            holds = {0x15: value == k, 0x35: value >= k, 0x45: bool(value & k)}[code]
            at += 1 + (yes if holds else no)


def numbers(machine: str) -> dict[str, int]:
    """The refused calls of a machine by name."""
    column = list(MACHINES).index(machine)
    return {name: number for name, pair in system_calls._REFUSED.items() if (number := pair[column]) is not None}


@pytest.mark.parametrize("machine", MACHINES)
def test_numbers_are_those_of_the_kernel(machine: str) -> None:
    if not HEADERS[machine].exists():
        pytest.skip(f"{HEADERS[machine]} is not installed")
    text = HEADERS[machine].read_text()
    header = {name: int(number) for name, number in re.findall(r"#define __NR3?2?6?4?_?(\w+)\s+(\d+)$", text, re.M)}
    header = {name.removeprefix("_"): number for name, number in header.items()}
    column = list(MACHINES).index(machine)
    ours = {**numbers(machine), "clone": system_calls._CLONE[column], "clone3": system_calls._CLONE3}
    assert {name: header[name] for name in ours if name in header} == {n: ours[n] for n in ours if n in header}
    assert len(set(ours) & set(header)) > 40


@pytest.mark.parametrize("machine", MACHINES)
def test_each_call_gets_its_verdict(machine: str) -> None:
    clone = 56 if machine == "x86_64" else 220
    refused = set(numbers(machine).values())
    for number in range(463):
        expected = REFUSE if number in refused or number == clone else MISSING if number == 435 else ALLOW
        assert verdict(machine, number) == expected, number
    assert verdict(machine, clone, THREAD) == ALLOW
    assert verdict(machine, clone, 0x10000000) == REFUSE  # CLONE_NEWUSER
    assert {verdict(machine, number) for number in (463, 1000, 0x40000000, 0xFFFFFFFF)} == {MISSING}
    assert verdict(machine, 0, audit=0x40000003) == KILL  # i386 calls on x86_64


@pytest.mark.parametrize("machine", MACHINES)
def test_what_reaches_beyond_a_sandbox_is_refused(machine: str) -> None:
    names = "ptrace umount2 unshare setns keyctl bpf perf_event_open io_uring_setup userfaultfd kexec_load "
    names += "init_module finit_module socket memfd_create shmget process_vm_writev pidfd_getfd open_by_handle_at"
    names += " setxattr lsetxattr fsetxattr"
    assert set(names.split()) <= set(numbers(machine))
    assert machine == "aarch64" or {"fork", "vfork"} <= set(numbers(machine))


@pytest.mark.parametrize("machine", MACHINES)
def test_threads_are_refused_where_their_number_has_no_limit(machine: str) -> None:
    clone = system_calls._CLONE[list(MACHINES).index(machine)]
    assert verdict(machine, clone, THREAD) == ALLOW
    assert verdict(machine, clone, THREAD, threads=False) == REFUSE


def test_other_machines_have_none() -> None:
    assert system_call_filter("riscv64") is None


def test_the_kernel_refuses_them() -> None:
    skip_without_sandbox()
    import platform

    called = numbers(platform.machine())
    program = f"""
import ctypes, errno, threading
libc = ctypes.CDLL(None, use_errno=True)
for name, number in {called!r}.items():
    assert libc.syscall(number, 0, 0, 0, 0, 0, 0) == -1, name
    assert ctypes.get_errno() == errno.EPERM, (name, ctypes.get_errno())
assert libc.syscall(435, 0, 0) == -1 and ctypes.get_errno() == errno.ENOSYS
thread = threading.Thread(target=print, args=("a thread",))
try:
    thread.start()
    thread.join()
except RuntimeError:
    print("none")
"""
    outcome = run_python(program)
    assert outcome.passed, outcome
    assert outcome.output == ("none\n" if os.geteuid() == 0 else "a thread\n")  # the number of root's has no limit
