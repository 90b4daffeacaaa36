"""How much memory a piece of work takes: it gets a process of its own. Knows processes, nothing of the work."""

from __future__ import annotations

import multiprocessing
import resource
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Alone(Generic[T]):
    """What the work gave, its seconds (imports left out) and its process's peak of memory."""

    found: T
    seconds: float
    peak_gb: float


def alone(work: Callable[..., T], *arguments: object) -> Alone[T]:
    """`work` and its arguments must be picklable."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_measured, work, arguments).result()


def _measured(work: Callable[..., T], arguments: tuple[object, ...]) -> Alone[T]:
    began = time.perf_counter()
    found = work(*arguments)
    return Alone(found, time.perf_counter() - began, _peak_gb())


def _peak_gb() -> float:
    """On Linux the kernel's own mark: `ru_maxrss` would count what the parent held when it started this process."""
    status = Path("/proc/self/status")
    if status.exists():
        mark = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(mark.split()[1]) / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e9 if sys.platform == "darwin" else 1e6)
