"""Whether work is being put into a graph, rather than done. Knows nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import torch

# MERGED: """Kernels' launches as single operations, which whoever makes a graph takes in without a look inside.
#
# Knows how PyTorch registers an operation. Knows no kernel.
# """


_capturing = ContextVar("capturing", default=False)


def in_graph() -> bool:
    """Nothing that is made now may be kept from one call to the next, and no value be looked at."""
    return torch.compiler.is_compiling() or _capturing.get()


@contextmanager
def capturing() -> Iterator[None]:
    """Within, work is captured by whoever says so."""
    before = _capturing.set(True)
    try:
        yield
    finally:
        _capturing.reset(before)


Launch = TypeVar("Launch", bound=Callable[..., Any])


def opaque(name: str, schema: str, launch: Launch, memory: Callable[..., Any]) -> Launch:
    """`launch` as an operation. memory: given the same, makes what it returns, with whatever in it."""
    operation = torch.library.custom_op(f"fsd_decoding::{name}", launch, mutates_args=(), schema=schema)
    operation.register_fake(memory)
    return operation  # type: ignore[return-value]


def as_graphs_can(launch: Launch, operation: Launch) -> Launch:
    """The operation where a graph is made; else the launch itself, which costs the host less."""
    return operation if in_graph() else launch
