"""Probabilities that a tiny model gives its texts, worked out from its logits."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor


def continuations(model: Any, prompt: list[int], temperature: float) -> Tensor:
    """(6, 6, 6) probabilities of the next three tokens."""
    pairs = torch.tensor([prompt + list(two) for two in itertools.product(range(6), repeat=2)])
    p = torch.softmax(model(input_ids=pairs).logits / temperature, -1)  # (36, 4, 6)
    first, second, third = p[0, 1], p[::6, 2], p[:, 3]
    return first[:, None, None] * second[:, :, None] * third.view(6, 6, 6)
