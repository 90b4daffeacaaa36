"""Full disks of several sizes under everything that a command writes; then enough space, and the same command again."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from lib.attacks.cases import Case, Stage, Verdict, at_once
from lib.attacks.commands import Ended, run
from lib.attacks.jobs import UNDISTURBED, judge_end, saved_so_far

ATTACK = "disks"
# Command, and share of what the undisturbed command left on the disk.
CASES = [(command, share) for share in (0.0, 0.2, 0.45, 0.7, 0.9) for command in UNDISTURBED]
_QUICK = 4  # a collection
_PAGE = 4096
_REASONS = ("No space left on device", "disk is full", "File too large")


def attack(stage: Stage) -> Iterator[Case]:
    numbers = stage.chosen(range(len(CASES)), [_QUICK])
    for command in dict.fromkeys(CASES[number][0] for number in numbers):
        UNDISTURBED[command](stage)
    yield from at_once(partial(_attack, stage, can_mount(stage.scratch)), numbers)


def _attack(stage: Stage, mounted: bool, number: int) -> Iterator[Case]:
    """Yields a case for the command on a full disk, and one for the same command when there is space.

    mounted: whether the disk is a tmpfs; else files are limited to the disk's size.
    """
    command, share = CASES[number]
    reference, folder = UNDISTURBED[command](stage), stage.folder(f"{ATTACK}-{number}")
    used = sum(-(-path.stat().st_size // _PAGE) for path in reference.folder.rglob("*") if path.is_file())
    size = _PAGE * max(1, round(share * used))
    damage = f"a disk of {size // 1024} KiB" if mounted else f"files of at most {size // 1024} KiB"
    with disk(folder, size) if mounted else _folder(folder):
        job = replace(reference, folder=folder)
        job.prepare(reference)
        ended = run(job.name, job.arguments(), None if mounted else size)
        before = saved_so_far(job)
        yield Case(ATTACK, number, f"fsd-{command}", damage, *judge_full(ended, folder))
        if mounted:
            subprocess.run(["mount", "-o", "remount,size=100m", folder], check=True)
        ended = run(job.name, job.arguments())
        verdict = judge_end(ended, job, reference)
        if verdict[0] == "resumed" and (gone := before - saved_so_far(job)):
            verdict = ("lost", f"{gone.total()} results that were saved on the full disk are gone")
        yield Case(ATTACK, number, f"fsd-{command} with enough space", damage, *verdict)


def judge_full(ended: Ended, folder: Path) -> Verdict:
    """Returns the verdict on a command that met a full disk: its last line names the file and the reason."""
    if (complaint := ended.complaint()) is not None:
        return complaint
    if ended.code == 0:
        return "fitted", ""
    line = ended.last_line
    if not ended.refused:
        return "unclear", f"exit code {ended.code}: {line}"
    named = {"file": str(folder) in line, "reason": any(reason in line for reason in _REASONS)}
    missing = " and the ".join(what for what, found in named.items() if not found)
    return ("unclear", f"it does not name the {missing}: {line}") if missing else ("refused", line)


def can_mount(scratch: Path) -> bool:
    """Whether this user may mount a tmpfs here."""
    folder = scratch / "mounted"
    folder.mkdir(parents=True, exist_ok=True)
    if os.name != "posix" or os.geteuid() or shutil.which("mount") is None:
        return False
    try:
        with disk(folder, _PAGE):
            return True
    except subprocess.CalledProcessError:
        return False


@contextmanager
def disk(folder: Path, size: int) -> Iterator[None]:
    """Mounts a tmpfs of so many bytes on a folder."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)]
    subprocess.run(mount, check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


@contextmanager
def _folder(folder: Path) -> Iterator[None]:
    yield
    shutil.rmtree(folder)
