"""Proposes tokens for a round with a small model.

Knows how the draft model is fed. Knows nothing of acceptance: the next round simply names the position
it starts from, and what was rejected is overwritten.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fsd_decoding.runner import ModelRunner
from fsd_decoding.sampling import Sampling


class ModelDrafter:
    """Drafts with a causal LM, drawing with the same keyed noise as the target."""

    def __init__(self, runner: ModelRunner) -> None:
        self.runner = runner

    def prefill(self, rows: Tensor, tokens: Tensor, until: int) -> None:
        self.runner.prefill(rows, tokens, until)

    def draft(
        self,
        tokens: Tensor,
        lengths: Tensor,
        keys: Tensor,
        sampling: Sampling,
        draft_length: int,
        longest: int,
    ) -> tuple[Tensor, Tensor]:
        """Drafts `draft_length` = L tokens a row.

        Args:
            tokens: (B, slots) with `lengths` (B,) of them valid; `longest` is the largest length.
            keys: (B, 2) of the noise.

        Returns:
            drafted tokens (B, L) and the raw logits they were drawn from (B, L, V).
        """
        # The last two tokens are fed, because after a full round the draft has not read its own last
        # one; then the shape never depends on the last round. A one-token row feeds its token twice.
        positions = torch.stack([lengths - 2, lengths - 1], 1).clamp_min(0)  # (B, 2)
        fed = tokens.gather(1, positions)
        drafted, logits = [], []
        for step in range(draft_length):
            here = self.runner.logits(fed, positions, longest + step, keep=1)  # (B, 1, V)
            positions = lengths[:, None] + step
            fed = sampling.draw(sampling.warp(here), keys, positions)
            drafted.append(fed)
            logits.append(here)
        return torch.cat(drafted, 1), torch.cat(logits, 1)
