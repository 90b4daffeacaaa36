"""The worker processes of this one, as the system lists them."""

from __future__ import annotations

import os
from pathlib import Path


def worker_processes() -> list[int]:
    """Returns the ids of the running children that loky has started to work."""
    children = [
        int(child)
        for listing in Path(f"/proc/{os.getpid()}/task").glob("*/children")
        for child in listing.read_text().split()
    ]
    return [child for child in children if "popen_loky_posix" in _command(child)]


def _command(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text()
    except OSError:  # it has ended
        return ""
