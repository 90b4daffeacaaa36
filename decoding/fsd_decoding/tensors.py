"""Helpers for tensors: lazy attributes, copies that do not block, a fast argmax, and what kernels and sums can read."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import Any, Generic, Self, TypeVar, overload

import torch
from torch import Tensor

from fsd_decoding.graphs.callers import in_graph

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


def on_device(device: torch.device) -> AbstractContextManager[Any]:
    """Inside, kernels and graphs are launched on this GPU; nothing changes where the device is none."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


_FEW_ROWS = 2


def argmax(values: Tensor) -> Tensor:
    """Returns the index of the largest value, of equal ones the first: (..., V) -> (...).

    NumPy, which does not know bf16, finds it on a CPU in less than a tenth of PyTorch's time, but for a row or two.
    """
    few = values.numel() <= _FEW_ROWS * values.shape[-1]
    if few or values.device.type != "cpu" or values.dtype not in (torch.float32, torch.float64) or in_graph():
        return values.argmax(-1)
    return torch.from_numpy(values.numpy().argmax(-1))


def wide(values: Tensor) -> Tensor:
    """Returns values in fp32, or in fp64 where they are."""
    return values if values.dtype == torch.float64 else values.float()


INTERPRETED = False  # tests set it under TRITON_INTERPRET=1, to run whole engines with interpreted kernels on a CPU

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_works: dict[int, bool] = {}  # GPU index -> whether Triton works there


def kernels_support(*logits: Tensor) -> bool:
    """Whether kernels can read these logits.

    They must be on the current GPU, and Triton must work there (or interpret). The vocabulary must be contiguous in
    memory, and no gradient required.
    """
    if not all(_readable(tensor) for tensor in logits):
        return False
    if INTERPRETED:
        return True
    if not all(tensor.is_cuda and tensor.device.index == torch.cuda.current_device() for tensor in logits):
        return False  # kernels are launched on the current GPU
    if not in_graph():
        probe_triton(logits[0].device)
    return _works.get(logits[0].device.index, False)


def readable(logits: Tensor) -> Tensor:
    """Returns a model's logits as kernels read them, or `wide` for operations of PyTorch."""
    return logits if kernels_support(logits) else wide(logits)


def probe_triton(device: torch.device) -> None:
    """Tests once per GPU whether Triton works there; it needs a C compiler for its driver. Not possible in a graph."""
    if device.type != "cuda" or device.index in _works or find_spec("triton") is None:
        return
    from fsd_decoding.kernels import scan

    try:
        with torch.cuda.device(device):
            scan(torch.zeros(1, 1, 2, device=device))
        _works[device.index] = True
    except Exception as error:  # whatever it is, PyTorch's operations take over
        _works[device.index] = False
        reason = " ".join(str(error).split())
        warnings.warn(f"Triton does not work on {device}, so decoding is slower: {reason:.200}", stacklevel=2)


def _readable(logits: Tensor) -> bool:
    needs_gradient = torch.is_grad_enabled() and logits.requires_grad
    return logits.dtype in _DTYPES and logits.stride(-1) == 1 and not needs_gradient
