"""Whether the host has to know a value, or hands one over, while a step runs: no graph of a device can hold that.

Knows PyTorch's operations as they are dispatched. Knows nothing of steps.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_INDEXING = {torch.ops.aten.index.Tensor, torch.ops.aten.index_put.default, torch.ops.aten.index_put_.default}
_TAGS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


class HostSyncDetector(TorchDispatchMode):
    """Within, notes the first operation by which host and device wait for each other."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.at: str | None = None

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = operation(*args, **kwargs or {})
        if self.at is None and (looks(operation, args) or crosses((args, kwargs), out)):
            self.at = str(operation)
        return out


def looks(operation: Any, args: tuple[Any, ...]) -> bool:
    """Whether what comes out depends on values in another way than by being computed from them."""
    if operation in _INDEXING:  # by numbers it gathers, by truth values it counts them first
        masked = any(isinstance(one, Tensor) and one.dtype in (torch.bool, torch.uint8) for one in args[1])
        return masked and (len(args) < 3 or args[2].numel() > 1)  # one number for all needs no count
    return not _TAGS.isdisjoint(operation.tags)


def crosses(given: Any, made: Any) -> bool:
    """Whether an operation copies between devices; a number of the host that goes along with it is no copy."""
    sources, results = ([one for one in tree_leaves(some) if isinstance(one, Tensor)] for some in (given, made))
    if not sources or not results:
        return False
    device = results[0].device
    elsewhere = [one for one in sources if one.device != device]
    return len(elsewhere) == len(sources) or any(one.dim() for one in elsewhere)
