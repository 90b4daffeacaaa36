"""Numbers on their way from the host to a device. Knows nothing of what they mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def sent(numbers: Sequence[Any], device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """A tensor of them on the device, where the host does not wait for what that has still to do."""
    made = torch.tensor(numbers, dtype=dtype)
    return (made.pin_memory() if device.type == "cuda" else made).to(device, non_blocking=True)
