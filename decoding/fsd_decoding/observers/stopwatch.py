"""Stopwatches of a round's phases: by the host's clock, or on CUDA by events, as the host runs ahead of the device."""

from __future__ import annotations

import time
from typing import Protocol

import torch


class Stopwatch(Protocol):
    """Measures laps from when it was made."""

    def lap(self) -> None:
        """Ends a lap."""

    def seconds(self, lap: int) -> float:
        """Returns what a lap took; on CUDA it waits for the end of it."""


class HostStopwatch:
    """Measures what the host takes."""

    def __init__(self) -> None:
        self._times = [time.perf_counter()]

    def lap(self) -> None:
        self._times.append(time.perf_counter())

    def seconds(self, lap: int) -> float:
        return self._times[lap + 1] - self._times[lap]


class CudaStopwatch:
    """Measures what the work takes that is queued on the current stream."""

    def __init__(self) -> None:
        self._events: list[torch.cuda.Event] = []
        self.lap()

    def lap(self) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream())
        self._events.append(event)

    def seconds(self, lap: int) -> float:
        begin, end = self._events[lap : lap + 2]
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1000


def stopwatch(device: torch.device) -> Stopwatch:
    """Returns a running stopwatch for work on this device."""
    return CudaStopwatch() if device.type == "cuda" else HostStopwatch()
