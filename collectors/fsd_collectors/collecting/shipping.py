"""Results on their way from a device to the host, which nobody waits for until all are there.

Knows tensors and streams. Knows nothing of what they hold.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Shipment:
    """On CUDA copies go to pinned memory behind the work that made them; elsewhere there is nothing to gain."""

    def __init__(self) -> None:
        self._sent: list[Tensor] = []
        self._last: torch.cuda.Event | None = None

    def send(self, *tensors: Tensor) -> None:
        self._sent += [tensor.to("cpu", non_blocking=tensor.is_cuda) for tensor in tensors]
        if tensors[-1].is_cuda:
            self._last = torch.cuda.Event()
            self._last.record(torch.cuda.current_stream(tensors[-1].device))

    def received(self) -> list[Tensor]:
        """All that was sent, in order."""
        if self._last is not None:
            self._last.synchronize()  # the copies of one stream end in their order
        return self._sent
