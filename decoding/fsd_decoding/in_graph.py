"""Whether work is being put into a graph, rather than done. Knows nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

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
