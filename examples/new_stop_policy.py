"""A stop policy of one's own: drafts go on while the draft is sure of its likeliest token.

From the folder of this file: fsd-calibrate --task arithmetic --min-acc 0.95 --stop-policy new_stop_policy:Sure
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsd_decoding.policies.stopping import StopPolicy

if TYPE_CHECKING:
    import torch

    from fsd_decoding.policies.stopping import DraftState


class Sure(StopPolicy):
    """Goes on while the draft gives its likeliest token more than one half."""

    def goes_on(self, state: DraftState) -> torch.Tensor:
        return state.logits[-1][:, 0].softmax(-1).amax(-1) > 0.5 if state.logits else state.drafting
