"""Callers of a round's steps: eager, or as one `torch.compile` graph per shape."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Literal, Protocol, TypeVar

import torch

from fsd_common.errors import UsageError
from fsd_decoding.graphs.recent import RecentlyUsed

Value = TypeVar("Value")

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


class Eager:
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


class Graphs:
    """Calls every step as one full graph, compiled when its key first occurs.

    PyTorch's own guards, which check whether a graph still applies, cost more than the graph of a small model. They are
    switched off, so the key must hold everything that a graph depends on.

    Args:
        backend: that of `torch.compile`. "inductor" compiles kernels; "eager" keeps PyTorch's kernels and only removes
            Python, so results are bit-identical, but for the products that `models/products.py` gives to oneDNN.
    """

    can_reshape = False
    results_persist = True
    uncompiled = Eager()

    def __init__(self, backend: Literal["inductor", "eager"]) -> None:
        self._backend = backend
        self._graphs: RecentlyUsed[Callable[..., Any]] = RecentlyUsed()

    def size(self, needed: int) -> int:
        return max(128, power_of_two(needed))

    def rows(self, requests: int, batch_size: int) -> int:
        return min(batch_size, power_of_two(requests))

    def __call__(self, key: GraphKey, function: Callable[..., Value], *args: Any) -> Value:
        graph = self._graphs.get((function, key), lambda: _compile(function, self._backend))
        result: Value = graph(*args)
        return result

    def __len__(self) -> int:
        return len(self._graphs.values())


def caller(compile: Compile) -> Caller:
    """Returns the caller for a `compile=` argument. UsageError: it is none that `Compile` names."""
    if compile not in (False, True, "capture"):
        raise UsageError(f"compile is {compile!r}; it must be False, 'capture' or True")
    if not compile:
        return Eager()
    return Graphs("eager" if compile == "capture" else "inductor")


def _compile(function: Any, backend: str) -> Callable[..., Any]:
    """Compiles a copy of the function, because PyTorch stores graphs by code object and each needs its own."""
    code = function.__code__.replace()
    copy = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    unguarded: dict[str, str | int | bool | Callable[..., Any]] = {
        "guard_filter_fn": torch.compiler.skip_all_guards_unsafe
    }
    return torch.compile(copy, fullgraph=True, dynamic=False, backend=backend, options=unguarded)


def power_of_two(size: int) -> int:
    """Returns the smallest power of two that is at least `size`."""
    return 1 << (size - 1).bit_length()
