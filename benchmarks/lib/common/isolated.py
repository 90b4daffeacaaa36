"""Seconds and peak memory of a piece of work that runs in a process of its own."""

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
class IsolatedRun(Generic[T]):
    """What the work returned, its seconds without imports, and the peak memory of its process."""

    returned: T
    seconds: float
    peak_gb: float


def run_isolated(work: Callable[..., T], *arguments: object) -> IsolatedRun[T]:
    """Runs `work`, which must be picklable like its arguments, in a new process."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_measure, work, arguments).result()


def _measure(work: Callable[..., T], arguments: tuple[object, ...]) -> IsolatedRun[T]:
    began = time.perf_counter()
    returned = work(*arguments)
    return IsolatedRun(returned, time.perf_counter() - began, _peak_gb())


def _peak_gb() -> float:
    """Returns the peak resident memory.

    On Linux it is the kernel's own mark, since `ru_maxrss` counts what the parent held when it started this process.
    """
    status = Path("/proc/self/status")
    if status.exists():
        mark = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(mark.split()[1]) / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e9 if sys.platform == "darwin" else 1e6)
