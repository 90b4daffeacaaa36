"""Milliseconds of calls, whose work on the device is waited for."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch


def milliseconds(call: Callable[[], object], repeats: int, device: str) -> float:
    """Returns the milliseconds of a call, averaged over `repeats` after two that warm up."""
    for _ in range(2):
        call()
    return sum(each_milliseconds(lambda: [call() for _ in range(repeats)], 1, device)) / repeats


def each_milliseconds(call: Callable[[], object], calls: int, device: str) -> list[float]:
    """Returns the milliseconds of each of the first calls."""
    seconds = []
    for _ in range(calls):
        _wait(device)
        began = time.perf_counter()
        call()
        _wait(device)
        seconds.append(time.perf_counter() - began)
    return [1000 * each for each in seconds]


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
