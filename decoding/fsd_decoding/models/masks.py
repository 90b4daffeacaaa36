"""Attention masks of rows of different lengths, in which a slot is the position of its token but in branches."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fsd_common.errors import UsageError
from fsd_decoding.models.branches import Branches

FULL, SLIDING = "full_attention", "sliding_attention"


class Masks:
    """Makes the additive masks of a model's kinds of attention.

    Args:
        model: a loaded causal LM.
        slots: the most tokens per row.

    Raises:
        UsageError: a layer is neither full nor sliding attention.
    """

    def __init__(self, model: Any, slots: int) -> None:
        self._windows = mask_kinds(model)
        self._slots = torch.arange(slots, device=model.device)
        self._visible, self._hidden = torch.tensor([0.0, torch.finfo(model.dtype).min]).to(model.device, model.dtype)

    def __call__(self, positions: Tensor, reach: int, branches: Branches | None = None) -> dict[str, Tensor]:
        """Returns the mask (B, 1, Q, reach) of each kind of attention, for queries at `positions` (B, Q)."""
        slots, query = self._slots[:reach], positions[:, None, :, None]
        unseen = slots > query if branches is None else ~branches.visible(slots).unsqueeze(1)
        masks = {}
        for kind, window in self._windows.items():
            hidden = unseen if window is None else unseen | (self._positions(slots, branches) <= query - window)
            masks[kind] = torch.where(hidden, self._hidden, self._visible)
        return masks

    def _positions(self, slots: Tensor, branches: Branches | None) -> Tensor:
        """The positions of the tokens in slots (S,), which broadcast to (B, 1, Q, S)."""
        return slots if branches is None else branches.positions(slots)[:, None, None]


def mask_kinds(model: Any) -> Mapping[str, int | None]:
    """Maps each kind of attention among the layers to its window; None is full attention.

    Raises:
        UsageError: a layer is neither full nor sliding attention.
    """
    config = model.config.get_text_config()
    window = getattr(config, "sliding_window", None)
    kinds = set(getattr(config, "layer_types", None) or [])
    if not kinds:
        kinds = {SLIDING if window and _makes_windows(model) else FULL}
    if not kinds <= {FULL, SLIDING}:
        unsupported = ", ".join(sorted(kinds - {FULL, SLIDING}))
        raise UsageError(
            f"{config.model_type} has layers of kind {unsupported}, whose cache cannot be rolled back; "
            "use a model with full or sliding attention"
        )
    return {kind: window if kind == SLIDING else None for kind in sorted(kinds)}


def _makes_windows(model: Any) -> bool:
    """Whether the model's code implements windows; a configuration may name one that no layer uses (Moshi)."""
    return hasattr(sys.modules[type(model.get_decoder()).__module__], "create_sliding_window_causal_mask")
