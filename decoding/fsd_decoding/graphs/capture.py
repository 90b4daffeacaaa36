"""Capture and replay of steps: a replay launches the same kernels at the same addresses, without Python.

How a device captures is passed in; CUDA graphs and streams are at the end.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from threading import Lock
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fsd_decoding.graphs.callers import Caller, EagerCaller, GraphKey, RecentlyUsed, capturing, power_of_two

_INDEXING = {torch.ops.aten.index.Tensor, torch.ops.aten.index_put.default, torch.ops.aten.index_put_.default}
_TAGS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


class HostSyncDetector(TorchDispatchMode):
    """Inside its context, records in `at` the first operation by which host and device wait for each other."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.at: str | None = None

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = operation(*args, **kwargs or {})
        if self.at is None and (reads_values(operation, args) or crosses_devices((args, kwargs), out)):
            self.at = str(operation)
        return out


def reads_values(operation: Any, args: tuple[Any, ...]) -> bool:
    """Whether the host must read values to run the operation, for example to know the shape of its result."""
    if operation in _INDEXING:  # indices are gathered on the device, but the entries of a mask are counted first
        masked = any(isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in args[1])
        return masked and (len(args) < 3 or args[2].numel() > 1)  # a single number fills a mask without counting
    return not _TAGS.isdisjoint(operation.tags)


def crosses_devices(inputs: Any, outputs: Any) -> bool:
    """Whether an operation copies between devices; a host scalar passed as an argument is no copy."""
    sources, results = ([x for x in tree_leaves(values) if isinstance(x, Tensor)] for values in (inputs, outputs))
    if not sources or not results:
        return False
    device = results[0].device
    elsewhere = [source for source in sources if source.device != device]
    return len(elsewhere) == len(sources) or any(source.dim() for source in elsewhere)


Capture = Callable[[Callable[[], None]], Callable[[], None]]
"""Records the work that a function launches, without running it, and returns a function that runs it."""


@dataclass(frozen=True)
class _Step:
    """A captured step."""

    inputs: list[Tensor]  # the tensors it reads; arguments of later calls are copied here
    args: tuple[Any, ...]  # kept alive, because a graph holds addresses only
    replay: Callable[[], None]


_State = Literal["new", "once", "never"]
"""A step without a graph: not called yet, called once, or impossible to capture."""


class CapturingCaller:
    """Calls a step directly the first time, which also loads its kernels, captures it the second time, then replays it.

    So a shape that occurs once costs no capture, and no step runs twice. Steps return a tensor or a list of tensors,
    whose memory is shared by all results of the same shape: copy what is kept beyond the next call. State that a step
    reads or writes besides its tensor arguments must stay at its address and be written in place.

    Args:
        inner: calls a step where it is not replayed.
        capture: records a step on the device.
    """

    can_reshape = results_persist = False

    def __init__(self, inner: Caller, capture: Capture) -> None:
        self._inner, self._capture = inner, capture
        self._uncompiled = None if isinstance(inner, EagerCaller) else CapturingCaller(EagerCaller(), capture)
        self._steps: RecentlyUsed[_Step | _State] = RecentlyUsed()
        self._results: dict[Hashable, Any] = {}

    @property
    def uncompiled(self) -> CapturingCaller:
        return self if self._uncompiled is None else self._uncompiled

    def size(self, needed: int) -> int:
        """Rounds up by 256 slots, or a quarter of long texts: each size that occurs is a graph of its own."""
        step = max(256, power_of_two(needed) // 8)
        return max(self._inner.size(needed), -(-needed // step) * step)

    def rows(self, requests: int, batch_size: int) -> int:
        return min(batch_size, power_of_two(requests))

    def __call__(self, key: GraphKey, function: Callable[..., Any], *args: Any) -> Any:
        step_id = function, key
        step = self._steps.get(step_id, lambda: "new")
        if step == "once":
            step = self._capture_step(key, function, args) or "never"
        if isinstance(step, _Step):
            for captured, passed in zip(step.inputs, _tensors(args), strict=True):
                if captured is not passed:
                    captured.copy_(passed)
            step.replay()
            result = self._results[function, key.shape]
        elif step == "new":
            step, result = self._call_first(key, function, args)
        else:
            result = self._call(key, function, args)
        self._steps.put(step_id, step)
        return result

    def __len__(self) -> int:
        """Number of graphs."""
        return sum(isinstance(step, _Step) for step in self._steps.values())

    def _call_first(self, key: GraphKey, function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[_State, Any]:
        """Calls a step directly; the state returned says whether the next call may capture it."""
        if not isinstance(self._inner, EagerCaller):
            return "once", self._call(key, function, args)  # a step compiled as one full graph reads no values
        with HostSyncDetector() as detector:
            result = self._call(key, function, args)
        if detector.at is None:
            return "once", result
        _warn(function, f"{detector.at} waits for a value")
        return "never", result

    def _capture_step(self, key: GraphKey, function: Callable[..., Any], args: tuple[Any, ...]) -> _Step | None:
        """Captures a step; None, after a warning, where that fails."""
        try:
            with capturing():
                replay = self._capture(lambda: self._call(key, function, args))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            _warn(function, str(error.__context__ or error))
            return None
        return _Step(_tensors(args), args, replay)

    def _call(self, key: GraphKey, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Calls the step directly, and copies its result to the memory that results of its shape share."""
        return self._shared(key, function, self._inner(key, function, *args))

    def directly(self, key: GraphKey, function: Callable[..., Any], *args: Any) -> Any:
        return self._shared(key, function, function(*args))

    def _shared(self, key: GraphKey, function: Callable[..., Any], result: Any) -> Any:
        """Copies a result to the memory that results of its shape share."""
        shape = function, key.shape
        if shape not in self._results:
            self._results[shape] = result.clone() if isinstance(result, Tensor) else [one.clone() for one in result]
        else:
            for shared, new in zip(_tensors([self._results[shape]]), _tensors([result]), strict=True):
                shared.copy_(new)
        return self._results[shape]


def _warn(function: Callable[..., Any], reason: str) -> None:
    one_line = " ".join(reason.split())
    warnings.warn(
        f"step {function.__name__!r} cannot be captured as a graph, so rounds are slower: {one_line:.200}", stacklevel=2
    )


def _tensors(values: Iterable[Any]) -> list[Tensor]:
    """The tensors among the values and inside lists among them."""
    lists = (value if isinstance(value, list) else [value] for value in values)
    return [item for items in lists for item in items if isinstance(item, Tensor)]


_ONE_AT_A_TIME = Lock()  # a capture first synchronises with the whole GPU, which breaks other threads' captures


class CudaGraphs:
    """Captures CUDA graphs on the current GPU, which is the engine's own while it decodes.

    They share one memory pool, because they run one after another.
    """

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
                generator = torch.cuda.default_generators[torch.cuda.current_device()]
                generator.graphsafe_set_state(generator.clone_state())  # else it goes on as in a capture
                raise


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
