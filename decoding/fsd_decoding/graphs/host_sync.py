"""Detection of operations that synchronise host and device, which a device graph cannot hold."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_INDEXING = {torch.ops.aten.index.Tensor, torch.ops.aten.index_put.default, torch.ops.aten.index_put_.default}
_TAGS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


class HostSyncDetector(TorchDispatchMode):
    """Inside its context, records in `at` the first operation by which host and device wait for each other."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.at: str | None = None

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = operation(*args, **kwargs or {})
        if self.at is None and (reads_values(operation, args) or crosses_devices((args, kwargs), out)):
            self.at = str(operation)
        return out


def reads_values(operation: Any, args: tuple[Any, ...]) -> bool:
    """Whether the host must read values to run the operation, for example to know the shape of its result."""
    if operation in _INDEXING:  # indices are gathered on the device, but the entries of a mask are counted first
        masked = any(isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in args[1])
        return masked and (len(args) < 3 or args[2].numel() > 1)  # a single number fills a mask without counting
    return not _TAGS.isdisjoint(operation.tags)


def crosses_devices(inputs: Any, outputs: Any) -> bool:
    """Whether an operation copies between devices; a host scalar passed as an argument is no copy."""
    sources, results = ([x for x in tree_leaves(values) if isinstance(x, Tensor)] for values in (inputs, outputs))
    if not sources or not results:
        return False
    device = results[0].device
    elsewhere = [source for source in sources if source.device != device]
    return len(elsewhere) == len(sources) or any(source.dim() for source in elsewhere)
