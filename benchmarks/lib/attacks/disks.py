"""Full disks of several sizes under everything that a command writes; then enough space, and the same command again."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from lib.attacks.cases import Case
from lib.attacks.commands import Ended, run
from lib.attacks.jobs import Calibration, Job, saved_so_far
from lib.attacks.kills import judge_end, undisturbed
from lib.attacks.material import Material
from lib.attacks.stage import Stage

ATTACK = "disks"
COMMANDS = ("calibrate", "collect", "train")
SHARES = (0.0, 0.2, 0.45, 0.7, 0.9)  # of what the undisturbed command left on the disk
_QUICK = 4  # a collection
_PAGE = 4096
_REASONS = ("No space left on device", "disk is full", "File too large")


def cases() -> list[tuple[str, float]]:
    return [(command, share) for share in SHARES for command in COMMANDS]


def attack(stage: Stage) -> Iterator[Case]:
    mounted = can_mount(stage.scratch)
    numbers = stage.chosen([_QUICK] if stage.quick else range(len(cases())))
    for command in dict.fromkeys(cases()[number][0] for number in numbers):
        undisturbed(command, stage.material)
    yield from stage.at_once(_attack, [(number, stage.material, stage.scratch, mounted) for number in numbers])


def _attack(number: int, material: Material, scratch: Path, mounted: bool) -> Iterator[Case]:
    """Yields a case for the command on a full disk, and one for the same command when there is space.

    mounted: whether the disk is a tmpfs; else files are limited to the disk's size.
    """
    command, share = cases()[number]
    reference = undisturbed(command, material)
    size = max(_PAGE, round(share * _used(reference.folder) / _PAGE) * _PAGE)
    folder = scratch / f"{ATTACK}-{number}"
    folder.mkdir(parents=True, exist_ok=True)
    damage = f"a disk of {size // 1024} KiB" if mounted else f"files of at most {size // 1024} KiB"
    with _disk(folder, size) if mounted else _folder(folder):
        job: Job = replace(reference, folder=folder)  # type: ignore[type-var]
        if isinstance(job, Calibration) and isinstance(reference, Calibration):
            job.take_facts(reference)
        ended = run(job.name, job.arguments(), None if mounted else size)
        before = saved_so_far(job)
        yield Case(ATTACK, number, f"fsd-{command}", damage, *judge_full(ended, folder))
        if mounted:
            subprocess.run(["mount", "-o", "remount,size=100m", folder], check=True)
        ended = run(job.name, job.arguments())
        verdict = judge_end(ended, job, reference)
        if verdict[0] == "resumed" and (gone := before - saved_so_far(job)):
            verdict = ("lost", f"{sum(gone.values())} results that were saved on the full disk are gone")
        yield Case(ATTACK, number, f"fsd-{command} with enough space", damage, *verdict)


def judge_full(ended: Ended, folder: Path) -> tuple[str, str]:
    """Returns the verdict on a command that met a full disk: its last line names the file and the reason."""
    if (complaint := ended.complaint()) is not None:
        return complaint
    if ended.code == 0:
        return "fitted", ""
    if not ended.refused:
        return "unclear", f"exit code {ended.code}: {ended.last_line}"
    missing = [
        what
        for what, found in (("file", str(folder) in ended.last_line), ("reason", _reason_in(ended.last_line)))
        if not found
    ]
    return ("unclear", f"it does not name the {' and the '.join(missing)}: {ended.last_line}") if missing else (
        "refused", ended.last_line
    )  # fmt: skip


def _reason_in(line: str) -> bool:
    return any(reason in line for reason in _REASONS)


def can_mount(scratch: Path) -> bool:
    """Whether this user may mount a tmpfs here."""
    folder = scratch / "mounted"
    folder.mkdir(parents=True, exist_ok=True)
    if os.name != "posix" or os.geteuid() or shutil.which("mount") is None:
        return False
    try:
        with _disk(folder, _PAGE):
            return True
    except subprocess.CalledProcessError:
        return False


@contextmanager
def _disk(folder: Path, size: int) -> Iterator[None]:
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


def _used(folder: Path) -> int:
    """Returns the bytes that the files take, in whole pages."""
    sizes = (path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return sum(-(-size // _PAGE) * _PAGE for size in sizes)
