"""What CUDA alone has: graphs of what was launched, and streams beside one another.

Knows PyTorch's interface to them. Knows nothing of what is launched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from threading import Lock

import torch

_ONE_AT_A_TIME = Lock()  # a capture waits for the whole GPU first, which would break another thread's


class CudaGraphs:
    """Captures on the current GPU. All its graphs share what memory they need within a step: they run one after
    another."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, launch: Callable[[], None]) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        with (
            _ONE_AT_A_TIME,
            self._mended(),
            # Other threads may allocate meanwhile.
            torch.cuda.graph(
                graph, self._pool, _stream(torch.cuda.current_device()), capture_error_mode="thread_local"
            ),
        ):
            launch()
        return graph.replay

    @contextmanager
    def _mended(self) -> Iterator[None]:
        """A capture that fails leaves its stream current, and its memory pool open and in use."""
        with torch.cuda.stream(torch.cuda.current_stream()):
            try:
                yield
            except Exception:
                with suppress(RuntimeError):
                    torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), self._pool)
                    torch._C._cuda_releasePool(torch.cuda.current_device(), self._pool)
                self._pool = torch.cuda.graph_pool_handle()
                raise


def cuda_graphs(device: torch.device) -> CudaGraphs | None:
    """None for another GPU than the current one, which kernels are launched on."""
    return CudaGraphs() if device.index == torch.cuda.current_device() else None


@cache
def _stream(device: int) -> torch.cuda.Stream:
    """One for all captures, as libraries keep a workspace for each that they ever saw."""
    return torch.cuda.Stream(device)


class SideStream:
    """Work beside the current stream's, behind what that was given up to a mark."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event()
        event.record(self._current())
        return event

    @contextmanager
    def behind(self, mark: torch.cuda.Event) -> Iterator[None]:
        self._stream.wait_event(mark)
        with torch.cuda.stream(self._stream):
            yield

    def after(self, mark: torch.cuda.Event) -> None:
        """What the current stream is given from now on comes behind the mark."""
        self._current().wait_event(mark)

    def join(self) -> None:
        """What the current stream is given from now on comes behind the work done here."""
        self._current().wait_stream(self._stream)

    def _current(self) -> torch.cuda.Stream:
        return torch.cuda.current_stream(self._stream.device)
