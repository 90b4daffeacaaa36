"""Whether code runs inside a graph under construction, and custom kernels as operations that graphs can hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import torch

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
