"""Float64 throughout models with recurrent layers: transformers' scans and norms compute in fp32 for every dtype."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from support.models.exact_softmax import use_exact_softmax


def use_wide_scans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes what is cast to fp32 fp64 instead, for one test."""
    use_exact_softmax(monkeypatch)
    to = Tensor.to

    def wide(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        args = tuple(torch.float64 if each is torch.float32 else each for each in args)
        if kwargs.get("dtype") is torch.float32:
            kwargs["dtype"] = torch.float64
        return to(tensor, *args, **kwargs)

    monkeypatch.setattr(Tensor, "float", Tensor.double)
    monkeypatch.setattr(Tensor, "to", wide)
    monkeypatch.setattr(Tensor, "type", lambda tensor, *args: tensor.to(*args))
