"""Float64 throughout: transformers' eager attention and routers take softmaxes in fp32 for every dtype."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor


def use_exact_softmax(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes softmaxes keep the dtype of their input, for one test."""
    softmax = torch.nn.functional.softmax

    def exact(scores: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
        return softmax(scores, dim)

    monkeypatch.setattr(torch.nn.functional, "softmax", exact)
