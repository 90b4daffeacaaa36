"""CUDA graphs and CUDA side streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from threading import Lock

import torch

_ONE_AT_A_TIME = Lock()  # a capture first synchronises with the whole GPU, which breaks other threads' captures


class CudaGraphs:
    """Captures CUDA graphs on the current GPU. They share one memory pool, because they run one after another."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, launch: Callable[[], None]) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        with (
            _ONE_AT_A_TIME,
            self._cleaned_up_on_error(),
            # "thread_local", because other threads may allocate meanwhile.
            torch.cuda.graph(
                graph, self._pool, _stream(torch.cuda.current_device()), capture_error_mode="thread_local"
            ),
        ):
            launch()
        return graph.replay

    @contextmanager
    def _cleaned_up_on_error(self) -> Iterator[None]:
        """Restores the current stream and replaces the memory pool, which a failed capture leaves open and in use."""
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
    """Returns a capture for the current GPU; None for any other, because kernels are launched on the current one."""
    return CudaGraphs() if device.index == torch.cuda.current_device() else None


@cache
def _stream(device: int) -> torch.cuda.Stream:
    """The one stream of all captures on a GPU, because libraries keep a workspace for every stream they have seen."""
    return torch.cuda.Stream(device)


class CudaSideStream:
    """A second CUDA stream, whose work is ordered after a mark on the current stream."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)

    def mark(self) -> torch.cuda.Event:
        """Marks the end of the work that is queued on the current stream."""
        event = torch.cuda.Event()
        event.record(self._current())
        return event

    @contextmanager
    def run_after(self, mark: torch.cuda.Event) -> Iterator[None]:
        """Inside, work goes to the side stream, ordered after the mark."""
        self._stream.wait_event(mark)
        with torch.cuda.stream(self._stream):
            yield

    def wait_for(self, mark: torch.cuda.Event) -> None:
        """Orders the current stream's further work after the mark."""
        self._current().wait_event(mark)

    def join(self) -> None:
        """Orders the current stream's further work after the side stream's work so far."""
        self._current().wait_stream(self._stream)

    def _current(self) -> torch.cuda.Stream:
        return torch.cuda.current_stream(self._stream.device)
