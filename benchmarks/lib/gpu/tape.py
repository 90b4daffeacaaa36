"""CUDA graphs on a CPU: what PyTorch's operations did while a tape ran, done again in the memory they did it in.

Stands in for `fsd_decoding.graphs.cuda` where there is no GPU, and is as strict: nothing is done while it records, addresses
and numbers of the host stay what they were then, Python is not run again, looking at a value is an error, and what a
step made for itself is rubbish afterwards. It knows PyTorch's operations alone, among which ours are while a graph is
made (`fsd_decoding.graphs.tracing`).
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

from fsd_decoding.graphs.host_sync import reads_values


class Tape:
    """A `fsd_decoding.graphs.capture.Capture`."""

    def __call__(self, launch: Callable[[], None]) -> Callable[[], None]:
        recording = _Recording()
        try:
            # On a CPU these look without an operation.
            with recording, _refusing("tolist"), _refusing("numpy"):
                launch()
        finally:
            recording.undo()
        return recording.replay


class _Recording(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._done: list[Callable[[], None]] = []
        self._made: list[Tensor] = []
        self._before: list[tuple[Tensor, Tensor]] = []  # what was overwritten, and with what it was

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if reads_values(operation, args) or (operation is torch.ops.aten.lift_fresh.default and args[0].dim()):
            _refuse(str(operation))
        written = _written(operation, args, kwargs)
        self._before += [(one, one.clone()) for one in written]
        out = operation(*args, **kwargs)
        given = {_memory(one) for one in _tensors((args, kwargs))}
        self._made += [one for one in _tensors(out) if _memory(one) not in given]
        where = tree_map_only(Tensor, torch.detach, (args, kwargs, out))  # in memory, whatever the tensors become
        self._done.append(partial(_again, operation, where, bool(written)))
        return out

    def undo(self) -> None:
        """Nothing is done while a graph is captured."""
        for tensor, before in reversed(self._before):
            tensor.copy_(before)
        self._before.clear()
        self._spoil()

    def replay(self) -> None:
        for again in self._done:
            again()
        self._spoil()

    def _spoil(self) -> None:
        """Another graph may use the memory of what this one made."""
        for made in self._made:
            made.fill_(float("nan") if made.is_floating_point() else 77)


def _refusing(name: str) -> Any:
    return patch.object(Tensor, name, lambda *given: _refuse(f"Tensor.{name}"))


def _refuse(what: str) -> None:
    raise RuntimeError(f"{what} takes a value from or to the host, which is not permitted while a graph is captured")


def _again(operation: Any, where: Any, writes: bool) -> None:
    args, kwargs, out = where
    made = operation(*args, **kwargs)
    for own, new in zip(_tensors(out), _tensors(made), strict=True):
        if not writes and _memory(own) != _memory(new):  # else it is there already
            own.copy_(new)


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _tensors(values: Any) -> list[Tensor]:
    return [one for one in tree_leaves(values) if isinstance(one, Tensor)]


def _written(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """What the operation writes into, of its arguments."""
    given = dict(zip((one.name for one in operation._schema.arguments), args, strict=False)) | kwargs
    writes = (one.name for one in operation._schema.arguments if one.alias_info and one.alias_info.is_write)
    return [given[name] for name in writes if isinstance(given.get(name), Tensor)]
