"""`cached_property` that a compiled graph can go through: Python 3.11's own takes a lock. Knows nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, Self, TypeVar, overload

import torch
from torch import Tensor

# MERGED: """Numbers on their way from the host to a device. Knows nothing of what they mean."""


Value = TypeVar("Value")


class lazy(Generic[Value]):  # noqa: N801  # read as the property it is
    """A value computed when it is first asked for, and kept in the object's own dictionary."""

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
    """A tensor of them on the device, where the host does not wait for what that has still to do."""
    made = torch.tensor(numbers, dtype=dtype)
    return (made.pin_memory() if device.type == "cuda" else made).to(device, non_blocking=True)
