"""A stop policy that reads the draft's distribution q, as most do."""

from __future__ import annotations

import torch
from torch import Tensor

from fsd_decoding.policies.stopping import Answer, DraftState, StopPolicy


class Unsure(StopPolicy):
    """Ends drafts, and withholds tokens, where the largest probability of q is small."""

    def goes_on(self, state: DraftState) -> Answer:
        return _largest(state) > 0.3 if state.logits else [True] * len(state.rows)

    def withholds(self, state: DraftState) -> Answer:
        return _largest(state) < 0.2


def _largest(state: DraftState) -> Tensor:
    return torch.softmax(state.logits[-1][:, 0], -1).amax(-1)
