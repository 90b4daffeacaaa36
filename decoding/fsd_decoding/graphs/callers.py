"""How the steps of a round are called: directly, or as one `torch.compile` graph per shape, with all that this needs.

The only other file that knows of graphs is `capture.py`, which captures steps on a device.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Generic, Literal, Protocol, TypeVar

import torch

from fsd_common.errors import UsageError

Value = TypeVar("Value")

MOST = 256
"""Graphs kept. One setting needs about two (draft, verify) for each batch size, a power of two, and each size of the
text that a caller chooses: 200 cover batches up to 64 of texts up to 4k. Without a bound, a server that receives any
number of different temperatures would fill its memory."""


class RecentlyUsed(Generic[Value]):
    """The values of the keys used last, at most `MOST`. Warns once when the first is dropped."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, Value] = {}  # in order of the latest use
        self._warned = False

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Returns the key's value, made where there is none."""
        value = self._kept.pop(key, None)
        return self.put(key, make() if value is None else value)

    def put(self, key: Hashable, value: Value) -> Value:
        """Stores the value as the one used last, and returns it."""
        self._kept.pop(key, None)
        self._kept[key] = value
        if len(self._kept) > MOST:
            self._kept.pop(next(iter(self._kept)), None)
            if not self._warned:
                self._warned = True
                warnings.warn(
                    f"more than {MOST} graphs were needed, so those not used for longest are dropped, and made again "
                    "when they are: that takes time; use fewer batch sizes, draft lengths and sampling settings, or "
                    "compile=False",
                    stacklevel=2,
                )
        return value

    def values(self) -> list[Value]:
        """The values, the one used last at the end."""
        return list(self._kept.values())


_capturing = ContextVar("capturing", default=False)


def in_graph() -> bool:
    """Whether a graph is being traced or captured: then tensors must not be cached across calls, nor values read."""
    return torch.compiler.is_compiling() or _capturing.get()


@contextmanager
def capturing() -> Iterator[None]:
    """Inside, `in_graph` is true."""
    before = _capturing.set(True)
    try:
        yield
    finally:
        _capturing.reset(before)


Launch = TypeVar("Launch", bound=Callable[..., Any])


def opaque_operation(name: str, schema: str, launch: Launch, allocate: Callable[..., Any]) -> Launch:
    """Registers a kernel launch as a PyTorch operation, which graphs hold as a whole.

    Args:
        name: the operation's name in the namespace `fsd_decoding`.
        schema: its signature in PyTorch's schema language.
        launch: launches the kernel and returns its results.
        allocate: takes the same arguments and returns uninitialised results, for tracing.
    """
    operation = torch.library.custom_op(f"fsd_decoding::{name}", launch, mutates_args=(), schema=schema)
    operation.register_fake(allocate)
    return operation  # type: ignore[return-value]


def launch_or_operation(launch: Launch, operation: Launch) -> Launch:
    """Returns the registered operation inside a graph, else the launch itself, which costs the host less."""
    return operation if in_graph() else launch


Compile = bool | Literal["capture"]
"""How steps are called: False directly, "capture" as graphs of PyTorch's own kernels, True with compiled kernels."""


@dataclass(frozen=True)
class GraphKey:
    """Everything but tensor values that makes two calls of a step differ.

    Args:
        shape: the part that determines the shapes of the results.
        rest: everything else.
    """

    shape: Hashable
    rest: Hashable


class Caller(Protocol):
    """Calls the steps of a round, and chooses the sizes they are called with."""

    @property
    def can_reshape(self) -> bool:
        """Whether the number of rows may change without cost."""

    @property
    def results_persist(self) -> bool:
        """Whether a step's results stay valid after the next call of a step with results of the same shape."""

    @property
    def uncompiled(self) -> Caller:
        """A caller for steps that come in too many variants to compile each."""

    def size(self, needed: int) -> int:
        """Returns the number of slots to allocate or read, at least `needed`."""

    def rows(self, requests: int, batch_size: int) -> int:
        """Returns the number of rows to decode `requests` requests in, at most `batch_size`."""

    def __call__(self, key: GraphKey, function: Callable[..., Value], *args: Any) -> Value:
        """Returns `function(*args)`."""

    def directly(self, key: GraphKey, function: Callable[..., Value], *args: Any) -> Value:
        """Returns `function(*args)`, called as no graph, with results where a graph's would be."""


class EagerCaller:
    """Calls every step directly."""

    can_reshape = results_persist = True

    @property
    def uncompiled(self) -> Caller:
        return self

    def size(self, needed: int) -> int:
        return -(-needed // 16) * 16  # so that few different shapes occur, all aligned

    def rows(self, requests: int, batch_size: int) -> int:
        return min(batch_size, requests)

    def __call__(self, key: Hashable, function: Callable[..., Value], *args: Any) -> Value:
        return function(*args)

    directly = __call__


class CompiledCaller:
    """Calls every step as one full graph, compiled when its key first occurs.

    PyTorch's own guards, which check whether a graph still applies, cost more than the graph of a small model. They are
    switched off, so the key must hold everything that a graph depends on.

    Args:
        backend: that of `torch.compile`. "inductor" compiles kernels; "eager" keeps PyTorch's kernels and only removes
            Python, so results are bit-identical, but for the products that `models/lean.py` gives to oneDNN.
    """

    can_reshape = False
    results_persist = True
    uncompiled = EagerCaller()

    def __init__(self, backend: Literal["inductor", "eager"]) -> None:
        self._backend = backend
        self._graphs: RecentlyUsed[Callable[..., Any]] = RecentlyUsed()

    def size(self, needed: int) -> int:
        return slots_of_graphs(needed)

    def rows(self, requests: int, batch_size: int) -> int:
        return min(batch_size, power_of_two(requests))

    def __call__(self, key: GraphKey, function: Callable[..., Value], *args: Any) -> Value:
        graph = self._graphs.get((function, key), lambda: _compile(function, self._backend))
        result: Value = graph(*args)
        return result

    def directly(self, key: GraphKey, function: Callable[..., Value], *args: Any) -> Value:
        return function(*args)

    def __len__(self) -> int:
        return len(self._graphs.values())


def caller(compile: Compile) -> Caller:
    """Returns the caller for a `compile=` argument. UsageError: it is none that `Compile` names."""
    if compile not in (False, True, "capture"):
        raise UsageError(f"compile is {compile!r}; it must be False, 'capture' or True")
    if not compile:
        return EagerCaller()
    return CompiledCaller("eager" if compile == "capture" else "inductor")


def _compile(function: Any, backend: str) -> Callable[..., Any]:
    """Compiles a copy of the function, because PyTorch stores graphs by code object and each needs its own."""
    code = function.__code__.replace()
    copy = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    unguarded: dict[str, str | int | bool | Callable[..., Any]] = {
        "guard_filter_fn": torch.compiler.skip_all_guards_unsafe
    }
    return torch.compile(copy, fullgraph=True, dynamic=False, backend=backend, options=unguarded)


def slots_of_graphs(needed: int) -> int:
    """Returns the number of slots for `needed`: few numbers occur, as each has graphs of its own."""
    return max(128, power_of_two(needed))


def power_of_two(size: int) -> int:
    """Returns the smallest power of two that is at least `size`."""
    return 1 << (size - 1).bit_length()
