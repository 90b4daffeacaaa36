"""How much memory a device has left."""

from __future__ import annotations

from pathlib import Path

import torch


def available(device: str) -> int | None:
    """Returns the bytes that are free on a device, within the limits of this process's control group; None: unknown."""
    kind = torch.device(device).type
    if kind == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # held by torch for itself
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    if kind != "cpu":
        return None
    free = _fields(Path("/proc/meminfo")).get("MemAvailable:")  # None where there is no such file
    known = [size for size in (None if free is None else free * 1024, _left_in_group()) if size is not None]
    return min(known, default=None)


def _left_in_group(root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """What the control group's limit leaves, cached files not counted as used; None where there is no limit."""
    for limit, usage, cached in (
        ("memory.max", "memory.current", ("inactive_file", "active_file")),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", ("total_inactive_file", "total_active_file")),
    ):
        most, used = _number(root / limit), _number(root / usage)
        if most is not None and used is not None:
            fields = _fields((root / usage).parent / "memory.stat")
            return max(most - used + sum(fields.get(name, 0) for name in cached), 0)
    return None


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # no such file, or "max"
        return None


def _fields(path: Path) -> dict[str, int]:
    """The lines of a file of names and numbers."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    return {words[0]: int(words[1]) for line in lines if len(words := line.split()) > 1 and words[1].isdecimal()}
