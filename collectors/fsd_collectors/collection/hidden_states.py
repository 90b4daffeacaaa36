"""The draft's last hidden state: the input of its output embeddings, read by a hook and optionally projected."""

from __future__ import annotations

import math
from collections import deque
from types import TracebackType
from typing import Any, Literal, Self

import torch
from torch import Tensor

from fsd_common.argument_checks import check_count
from fsd_common.errors import UsageError
from fsd_decoding.drafters.base import DraftSource
from fsd_decoding.graphs.callers import in_graph

Width = int | Literal["whole"]


class HiddenStates:
    """Keeps the latest inputs of the output embeddings of a model; a context manager that installs the hook.

    Args:
        model: the draft, a causal LM in eager mode.
        width: "whole", or the width k of a projection by a Gaussian matrix over √k, which preserves the squared
            distances of n states within 1 ± ε for k of about 8 ln(n) / ε² (Johnson and Lindenstrauss 1984).
        seed: seed of the projection.
        calls: number of the latest forward passes to keep.

    Raises:
        UsageError: the draft is not a model in eager mode, or its state has fewer than k components.
    """

    def __init__(self, model: Any, width: Width, seed: int, calls: int = 1) -> None:
        if isinstance(model, DraftSource):
            raise UsageError(f"hidden is {width!r}, but the draft {model!r} has no hidden state; leave it out")
        if hasattr(model, "_orig_mod"):
            raise UsageError(f"hidden is {width!r}, but the draft is compiled; pass the model without compiling it")
        self._head = model.get_output_embeddings()
        # A quantised head's weight may be packed, so its shape is the second choice.
        whole: int = getattr(self._head, "in_features", None) or self._head.weight.shape[-1]
        if width != "whole":
            check_count("hidden", width, ", or 'whole'")
            if width > whole:
                raise UsageError(
                    f"hidden is {width}, but the draft's state has {whole} components; give fewer, or 'whole'"
                )
        self.width = whole if width == "whole" else width
        self.projected = width != "whole"
        self._matrix = _projection(whole, self.width, seed).to(self._head.weight.device) if self.projected else None
        self._calls: deque[Tensor] = deque(maxlen=calls)

    def __enter__(self) -> Self:
        self._hook = self._head.register_forward_pre_hook(self._keep)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hook.remove()

    def latest(self, calls: int = 1) -> Tensor:
        """Returns the states of the last `calls` forward passes over n positions: (B, calls x n, width) in fp16."""
        states = torch.cat(list(self._calls)[-calls:], 1)
        if self._matrix is not None:
            states = states.to(self._matrix) @ self._matrix
        kept: Tensor = states.to(torch.float16)
        return kept

    def _keep(self, head: Any, inputs: tuple[Tensor, ...]) -> None:
        if in_graph():
            raise UsageError("hidden states can be kept of eager drafts only; decode with compile=False")
        self._calls.append(inputs[0])


def _projection(states: int, width: int, seed: int) -> Tensor:
    """Returns the projection (H, k), which is the same on every device."""
    generator = torch.Generator().manual_seed(seed % 2**63)  # seeds may be any whole number
    return torch.randn((states, width), generator=generator) / math.sqrt(width)
