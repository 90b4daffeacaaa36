"""Disks of a given size, real ones in memory (tmpfs); tests that need one are skipped where mounting is forbidden."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, kilobytes: int) -> Iterator[Callable[[], None]]:
    """Mounts a disk on `folder`; yields a function that gives it all the space it needs."""
    folder.mkdir(parents=True, exist_ok=True)
    if _mount("-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)):
        pytest.skip("this user may not mount a file system")
    try:
        yield lambda: _require(_mount("-o", "remount,size=64m", str(folder)))
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def _mount(*arguments: str) -> int:
    try:
        return subprocess.run(["mount", *arguments], capture_output=True).returncode
    except FileNotFoundError:
        return 1


def _require(code: int) -> None:
    assert code == 0
