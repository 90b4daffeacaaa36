"""A trace folder under kills at any moment, a full disk, missing permissions, and a second collector.

Real processes, really killed; real file systems, mounted in a namespace of their own.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from fsd_collectors.store.reading import load_traces
from fsd_collectors.store.verifying import notes, verify
from fsd_collectors.store.writing import TraceWriter
from lib.common.forked_programs import fork
from support.messages import usage_error
from support.traces.rows import ON_POLICY, manifest, portion, write

MANY = manifest(256, portion=4, **ON_POLICY)  # 64 portions, more than 20 kills let pass
FEW = manifest(8, portion=4, **ON_POLICY)  # 2 portions


def begin(target: Callable[..., None], *args: Any) -> tuple[Any, Connection]:
    """Starts a process that runs `target(pipe, *args)` and waits until it is ready."""
    ours, theirs = multiprocessing.Pipe()
    process = fork(target, theirs, *args)
    assert ours.poll(60), "the child never began"
    ours.recv()
    return process, ours


def collect(pipe: Connection, path: Path) -> None:
    """Writes a portion on each message."""
    pipe.send("here")
    with TraceWriter(path, MANY) as writer:
        for number in range(writer.finished, MANY.portions):
            pipe.recv()
            writer.write(number, portion(MANY, number))
            pipe.send(number)


def kill_amid(path: Path, portions: int, after: float) -> None:
    """Lets a collector write `portions` and kills it `after` seconds in the next one."""
    process, pipe = begin(collect, path)
    for _ in range(portions):
        pipe.send("go")
        pipe.recv()
    pipe.send("go")
    time.sleep(after)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL


def listed(path: Path) -> int:
    return len(load_traces(path).shards) if (path / "manifest.json").exists() else 0


@pytest.mark.slow
def test_killed_at_twenty_random_moments_and_resumed_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    start = time.monotonic()
    whole = write(tmp_path / "whole", MANY)
    a_portion = (time.monotonic() - start) / MANY.portions
    moments, path = random.Random(0), tmp_path / "killed"
    for _ in range(20):
        portions, before = moments.randrange(3), listed(path)
        kill_amid(path, portions, moments.uniform(0, 1.5 * a_portion))
        assert before + portions <= listed(path) <= before + portions + 1
    assert verify(path) == []
    same_as_uninterrupted(write(path, MANY), whole)


def same_as_uninterrupted(path: Path, whole: Path) -> None:
    """Compares the folders file by file."""
    assert (verify(path), notes(path)) == ([], [])
    files = [{file.relative_to(root): file.read_bytes() for file in root.rglob("*.*")} for root in (path, whole)]
    assert files[0] == files[1]


def collect_until(pipe: Connection, path: Path, step: int) -> None:
    """Kills the process before or after the `step`-th operation that brings something to the disk."""
    pipe.send("here")
    steps = iter(range(step))

    def dying(call: Callable[..., Any]) -> Callable[..., Any]:
        def step_and_call(*args: Any) -> Any:
            if next(steps, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args)

        return step_and_call

    os.fsync = dying(os.fsync)
    os.replace = dying(os.replace)
    write(path, FEW)


@pytest.mark.slow
def test_killed_between_any_two_steps_it_resumes(tmp_path: Path) -> None:
    whole, died = write(tmp_path / "whole", FEW), 0
    for step in range(200):
        path = tmp_path / str(step)
        process, _pipe = begin(collect_until, path, step)
        process.join()
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        died += 1
        same_as_uninterrupted(write(path, FEW), whole)
    assert died >= 3 * 3 * FEW.portions


def hold(pipe: Connection, path: Path) -> None:
    with TraceWriter(path, FEW) as writer:
        writer.write(0, portion(FEW, 0))
        pipe.send("here")
        time.sleep(600)


def test_a_second_process_is_refused_until_the_first_is_killed(tmp_path: Path) -> None:
    process, _pipe = begin(hold, tmp_path)
    assert "is being written by another collector" in usage_error(lambda: write(tmp_path, FEW))
    assert listed(tmp_path) == 1  # reading is free meanwhile
    process.kill()
    process.join()
    assert load_traces(write(tmp_path, FEW)).complete


# --- disks ------------------------------------------------------------------------------------------------


def with_files_of(pipe: Connection, size: int, path: Path) -> None:
    """Lets the system refuse files longer than `size` bytes, as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    pipe.send("here")
    pipe.send(usage_error(lambda: write(path, FEW)))


@pytest.mark.parametrize("size", [0, 5000, 20_000])
def test_a_file_that_cannot_be_completed_leaves_nothing(size: int, tmp_path: Path) -> None:
    write(tmp_path, FEW, portions=1)
    process, pipe = begin(with_files_of, size, tmp_path)
    message = pipe.recv()
    process.join()
    assert f"folder {str(tmp_path)!r} cannot be written (File too large); its 1 finished portions are intact" in message
    assert (notes(tmp_path), verify(tmp_path)) == (["1 of 2 portions are finished"], [])
    same_as_uninterrupted(write(tmp_path, FEW), write(tmp_path / "../whole", FEW))


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="permissions do not bind this user")
def test_a_folder_without_permission_is_named(tmp_path: Path) -> None:
    write(tmp_path / "traces", FEW, portions=1)
    for path in (tmp_path / "traces/tokens", tmp_path / "traces"):
        path.chmod(0o500)
        assert "cannot be written (Permission denied)" in usage_error(lambda: write(tmp_path / "traces", FEW))
    assert verify(tmp_path / "traces") == []


def mounted(script: str, path: Path) -> list[str]:
    """Runs Python in a namespace where `path` is a disk of 200 kB and returns its output; skips without namespaces."""
    mount = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=200k none "$0" && exec "$@"', str(path)]
    if shutil.which("unshare") is None or subprocess.run([*mount, "true"], capture_output=True).returncode:
        pytest.skip("this user may not mount a disk of their own")
    done = subprocess.run(
        [*mount, sys.executable, "-c", script, str(path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.splitlines()


ON_A_SMALL_DISK = """
import subprocess, sys
from pathlib import Path
from fsd_collectors.store.verifying import notes, verify
from support.messages import usage_error
from support.traces.rows import manifest, write

path, run = Path(sys.argv[1]), manifest(80)
remount = lambda options: subprocess.run(["mount", "-o", "remount," + options, path], check=True)
print(usage_error(lambda: write(path, run)))
print(verify(path), notes(path), list(path.rglob("*.tmp")))
remount("ro")
print(usage_error(lambda: write(path, run)))
print(verify(path), notes(path))
remount("rw,size=10m")
write(path, run)
print(verify(path), notes(path))
"""


@pytest.mark.slow
def test_a_full_disk_and_a_read_only_one_leave_finished_portions_intact(tmp_path: Path) -> None:
    full, after_full, read_only, after_read_only, resumed = mounted(ON_A_SMALL_DISK, tmp_path)
    assert "cannot be written (No space left on device); its " in full
    assert re.fullmatch(r"\[\] \['[1-9] of 10 portions are finished'\] \[\]", after_full)
    assert "cannot be written (Read-only file system); " in read_only
    assert after_full == f"{after_read_only} []"
    assert resumed == "[] []"
