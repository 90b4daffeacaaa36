"""The draft's last hidden state: what its output embeddings read when they named q.

Knows hooks and a random projection. Knows nothing of rounds or completions; whoever feeds the draft says which of
the states it asked for.
"""

from __future__ import annotations

import math
from collections import deque
from types import TracebackType
from typing import Any, Literal, Self

import torch
from torch import Tensor

from fsd_decoding.drafters.base import DraftSource
from fsd_decoding.errors import UsageError
from fsd_decoding.graphs.tracing import in_graph
from fsd_decoding.validation import check_count

Width = int | Literal["whole"]


class HiddenStates:
    """Within `with`, keeps what the head of `model` was last given, in fp16.

    Args:
        model: the draft, a causal LM in eager mode.
        width: "whole", or k: projected by a Gaussian matrix over √k, made from `seed`, which keeps squared
            distances of n states within 1 ± ε for k of some 8 ln(n) / ε² (Johnson and Lindenstrauss 1984).
        calls: how many of the latest calls are kept.

    Raises:
        UsageError: the draft is no eager model, or its state has fewer than k numbers.
    """

    def __init__(self, model: Any, width: Width, seed: int, calls: int = 1) -> None:
        if isinstance(model, DraftSource):
            raise UsageError(f"hidden is {width!r}, but the draft {model!r} has no hidden state; leave hidden out")
        if hasattr(model, "_orig_mod"):
            raise UsageError(f"hidden is {width!r}, but the draft is compiled; give the model as it was")
        self._head = model.get_output_embeddings()
        whole: int = (
            getattr(self._head, "in_features", None) or self._head.weight.shape[-1]
        )  # quantised ones may be packed
        if width != "whole":
            check_count("hidden", width, ", or 'whole'")
            if width > whole:
                raise UsageError(f"hidden is {width}; the draft's state has {whole} numbers; give fewer, or 'whole'")
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
        """States of the last `calls` calls, side by side: each (B, n, H) -> (B, calls x n, width) in fp16."""
        states = torch.cat(list(self._calls)[-calls:], 1)
        if self._matrix is not None:
            states = states.to(self._matrix) @ self._matrix
        kept: Tensor = states.to(torch.float16)
        return kept

    def _keep(self, head: Any, inputs: tuple[Tensor, ...]) -> None:
        if in_graph():
            raise UsageError("hidden states are kept of eager drafts only; decode with compile=False")
        self._calls.append(inputs[0])


def _projection(states: int, width: int, seed: int) -> Tensor:
    """(H, k), the same on every device."""
    generator = torch.Generator().manual_seed(seed % 2**63)  # any whole number is a seed
    return torch.randn((states, width), generator=generator) / math.sqrt(width)
