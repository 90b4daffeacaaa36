"""Kernels' launches as single operations, which whoever makes a graph takes in without a look inside.

Knows how PyTorch registers an operation. Knows no kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from fsd_decoding.in_graph import in_graph

Launch = TypeVar("Launch", bound=Callable[..., Any])


def opaque(name: str, schema: str, launch: Launch, memory: Callable[..., Any]) -> Launch:
    """`launch` as an operation. memory: given the same, makes what it returns, with whatever in it."""
    operation = torch.library.custom_op(f"fsd_decoding::{name}", launch, mutates_args=(), schema=schema)
    operation.register_fake(memory)
    return operation  # type: ignore[return-value]


def as_graphs_can(launch: Launch, operation: Launch) -> Launch:
    """The operation where a graph is made; else the launch itself, which costs the host less."""
    return operation if in_graph() else launch
