"""Small helpers for tensors: a lazy attribute that graphs can trace, copies that do not block, and a fast argmax."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, Self, TypeVar, overload

import torch
from torch import Tensor

from fsd_decoding.graphs.tracing import in_graph

Value = TypeVar("Value")


class lazy(Generic[Value]):  # noqa: N801  # lower case, like `property`
    """A `cached_property` that `torch.compile` can trace; Python 3.11's own takes a lock, which it cannot."""

    def __init__(self, compute: Callable[[Any], Value]) -> None:
        self._compute, self._name = compute, compute.__name__
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, owner: None, kind: type) -> Self: ...
    @overload
    def __get__(self, owner: object, kind: type) -> Value: ...
    def __get__(self, owner: Any, kind: type) -> Any:
        if owner is None:
            return self
        value = self._compute(owner)
        setattr(owner, self._name, value)
        return value


def to_device(numbers: Sequence[Any], device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Copies numbers to a tensor on the device, without waiting for work that the device has queued."""
    tensor = torch.tensor(numbers, dtype=dtype)
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)


def argmax(values: Tensor) -> Tensor:
    """Returns the index of the largest value, of equal ones the first: (..., V) -> (...).

    NumPy, which does not know bf16, finds it on a CPU in less than a tenth of PyTorch's time.
    """
    if values.device.type != "cpu" or values.dtype not in (torch.float32, torch.float64) or in_graph():
        return values.argmax(-1)
    return torch.from_numpy(values.numpy().argmax(-1))
