"""How a step of a round is called: as it is, or as a compiled graph for every shape that occurs.

Knows `torch.compile`, and which sizes keep shapes few. Knows nothing of what it calls.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from types import FunctionType
from typing import Any, Protocol, TypeVar

import torch

Value = TypeVar("Value")


class Caller(Protocol):
    """Calls steps. `key` holds whatever beside tensors' values makes two calls of a function differ."""

    def size(self, needed: int) -> int:
        """How many slots to have, or to read, where so many are needed."""

    def rows(self, requests: int, batch_size: int) -> int:
        """How many rows to decode so many requests in."""

    def __call__(self, key: Hashable, function: Callable[..., Value], *args: Any) -> Value: ...


class Eager:
    """Calls a step as it is."""

    def size(self, needed: int) -> int:
        return -(-needed // 32) * 32  # so that shapes repeat

    def rows(self, requests: int, batch_size: int) -> int:
        return min(batch_size, requests)

    def __call__(self, key: Hashable, function: Callable[..., Value], *args: Any) -> Value:
        return function(*args)


class Graphs:
    """Calls a step as one full graph, compiled when a key first occurs.

    PyTorch's own check whether a graph still fits costs more than the graph of a small model, so it is left
    out: the key has to say it all.
    """

    def __init__(self) -> None:
        self._graphs: dict[Hashable, Callable[..., Any]] = {}

    def size(self, needed: int) -> int:
        return max(128, _power_of_two(needed))

    def rows(self, requests: int, batch_size: int) -> int:
        return min(batch_size, _power_of_two(requests))

    def __call__(self, key: Hashable, function: Callable[..., Value], *args: Any) -> Value:
        place = (function, key)
        if place not in self._graphs:
            self._graphs[place] = _graph(function)
        found: Value = self._graphs[place](*args)
        return found

    def __len__(self) -> int:
        return len(self._graphs)


def _graph(function: Any) -> Callable[..., Any]:
    """PyTorch keeps its graphs by code object, so every one gets a code object of its own."""
    code = function.__code__.replace()
    copy = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    return torch.compile(
        copy, fullgraph=True, dynamic=False, options={"guard_filter_fn": torch.compiler.skip_all_guards_unsafe}
    )


def _power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()
