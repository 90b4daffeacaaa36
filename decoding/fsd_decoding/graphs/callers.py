"""How a step of a round is called: as it is, or as a compiled graph for every shape that occurs.

Knows `torch.compile`, and which sizes keep shapes few. Knows nothing of what it calls.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Literal, Protocol, TypeVar

import torch

from fsd_decoding.errors import UsageError

Value = TypeVar("Value")


@dataclass(frozen=True)
class GraphKey:
    """Whatever beside tensors' values makes two calls of a function differ.

    shape: what of it the shapes of results depend on; rest: all else.
    """

    shape: Hashable
    rest: Hashable


class Caller(Protocol):
    """Calls steps."""

    @property
    def reshapes(self) -> bool:
        """Whether another number of rows costs nothing."""

    @property
    def keeps(self) -> bool:
        """Whether what a step returned is still that once one of its shape is called again."""

    @property
    def uncompiled(self) -> Caller:
        """One for steps that are too many to compile each."""

    def size(self, needed: int) -> int:
        """How many slots to have, or to read, where so many are needed."""

    def rows(self, requests: int, batch_size: int) -> int:
        """How many rows to decode so many requests in."""

    def __call__(self, key: GraphKey, function: Callable[..., Value], *args: Any) -> Value: ...


class Eager:
    """Calls a step as it is."""

    reshapes = keeps = True

    @property
    def uncompiled(self) -> Caller:
        return self

    def size(self, needed: int) -> int:
        return -(-needed // 32) * 32  # so that shapes repeat

    def rows(self, requests: int, batch_size: int) -> int:
        return min(batch_size, requests)

    def __call__(self, key: Hashable, function: Callable[..., Value], *args: Any) -> Value:
        return function(*args)


class Graphs:
    """Calls a step as one full graph, made when a key first occurs.

    `backend` is PyTorch's: "inductor" compiles kernels, "eager" keeps the ones there are and only leaves
    Python out, which gives the very same numbers. PyTorch's own check whether a graph still fits costs more
    than the graph of a small model, so it is left out: the key has to say it all.
    """

    reshapes = False
    keeps = True
    uncompiled = Eager()

    def __init__(self, backend: Literal["inductor", "eager"]) -> None:
        self._backend = backend
        self._graphs: dict[Hashable, Callable[..., Any]] = {}

    def size(self, needed: int) -> int:
        return max(128, power_of_two(needed))

    def rows(self, requests: int, batch_size: int) -> int:
        return min(batch_size, power_of_two(requests))

    def __call__(self, key: GraphKey, function: Callable[..., Value], *args: Any) -> Value:
        place = (function, key)
        if place not in self._graphs:
            self._graphs[place] = _graph(function, self._backend)
        found: Value = self._graphs[place](*args)
        return found

    def __len__(self) -> int:
        return len(self._graphs)


def caller(compile: bool | Literal["capture"]) -> Caller:
    """False: as it is; "capture": graphs of the same kernels; True: compiled kernels."""
    if compile not in (False, True, "capture"):
        raise UsageError(f"compile is {compile!r}; it must be False, 'capture' or True")
    if not compile:
        return Eager()
    return Graphs("eager" if compile == "capture" else "inductor")


def _graph(function: Any, backend: str) -> Callable[..., Any]:
    """PyTorch keeps its graphs by code object, so every one gets a code object of its own."""
    code = function.__code__.replace()
    copy = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    unguarded: dict[str, str | int | bool | Callable[..., Any]] = {
        "guard_filter_fn": torch.compiler.skip_all_guards_unsafe
    }
    return torch.compile(copy, fullgraph=True, dynamic=False, backend=backend, options=unguarded)


def power_of_two(size: int) -> int:
    """The least one that is not below `size`."""
    return 1 << (size - 1).bit_length()
