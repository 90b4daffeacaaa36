"""A stand-in for CUDA graphs on a CPU: records PyTorch operations and replays them in the same memory.

It takes the place of `fsd_decoding.graphs.capture` where there is no GPU, and is as strict. Recording has no effect,
addresses and Python numbers stay what they were, Python code does not run again, reading a value on the host is an
error, and intermediate tensors are overwritten after each replay. Only PyTorch operations are recorded; the project's
kernels are such operations while a graph is captured (`fsd_decoding.graphs.callers`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from fsd_decoding.graphs.capture import reads_values


class Tape:
    """A `fsd_decoding.graphs.capture.Capture` that records on a CPU."""

    def __call__(self, launch: Callable[[], None]) -> Callable[[], None]:
        recording = _Recording()
        try:
            # On a CPU these methods read values without an operation that could be recorded.
            with recording, _forbidding("tolist"), _forbidding("numpy"):
                launch()
        finally:
            recording.undo()
        return recording.replay


class _Recording(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._steps: list[Callable[[], None]] = []
        self._created: list[Tensor] = []
        self._before: list[tuple[Tensor, Tensor]] = []  # tensors that were overwritten, and their earlier values

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if reads_values(operation, args) or (operation is torch.ops.aten.lift_fresh.default and args[0].dim()):
            _forbid(str(operation))
        written = _written_arguments(operation, args, kwargs)
        self._before += [(tensor, tensor.clone()) for tensor in written]
        out = operation(*args, **kwargs)
        inputs = {_address(tensor) for tensor in _tensors((args, kwargs))}
        self._created += [tensor for tensor in _tensors(out) if _address(tensor) not in inputs]
        views = tree_map_only(Tensor, torch.detach, (args, kwargs, out))  # the same memory, whatever the tensors become
        self._steps.append(partial(_replay, operation, views, bool(written)))
        return out

    def undo(self) -> None:
        """Restores what recording has overwritten: capturing a CUDA graph does not run it."""
        for tensor, before in reversed(self._before):
            tensor.copy_(before)
        self._before.clear()
        self._spoil()

    def replay(self) -> None:
        for step in self._steps:
            step()
        self._spoil()

    def _spoil(self) -> None:
        """Overwrites intermediate tensors, whose memory another graph may use."""
        for tensor in self._created:
            tensor.fill_(float("nan") if tensor.is_floating_point() else 77)


def _forbidding(method: str) -> Any:
    return patch.object(Tensor, method, lambda *_: _forbid(f"Tensor.{method}"))


def _forbid(operation: str) -> None:
    raise RuntimeError(
        f"{operation} takes a value from or to the host, which is not permitted while a graph is captured"
    )


def _replay(operation: Any, views: Any, writes: bool) -> None:
    args, kwargs, out = views
    for recorded, new in zip(_tensors(out), _tensors(operation(*args, **kwargs)), strict=True):
        if not writes and _address(recorded) != _address(new):  # else the value is there already
            recorded.copy_(new)


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def _written_arguments(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """Returns the arguments that the operation writes into."""
    parameters = operation._schema.arguments
    by_name = dict(zip((parameter.name for parameter in parameters), args, strict=False)) | kwargs
    names = (parameter.name for parameter in parameters if parameter.alias_info and parameter.alias_info.is_write)
    return [by_name[name] for name in names if isinstance(by_name.get(name), Tensor)]
