"""Logits in which a drafted token is certain, so that vLLM's own rule accepts it."""

from __future__ import annotations

import torch
from torch import Tensor

_FORCED = 1e8  # vLLM gives tokens that a thinking budget forces a logit of 1e9
_CERTAIN = 1e30  # a logit beside which all others have probability 0 in fp32, even divided by vLLM's least temperature


def accept_certainly(logits: Tensor, drafted: Tensor, fuzzy: Tensor) -> Tensor:
    """Makes drafted tokens certain where `fuzzy`, in place, except those of probability 0 or beside a forced one.

    Args:
        logits: (N, V) the target's, processed.
        drafted: (N,) ids; negative ones are padding, which vLLM rejects.
        fuzzy: (N,) bool.

    Returns:
        Whether the drafted token is a most likely one of the target: (N,) bool.
    """
    token = (drafted >= 0).unsqueeze(1)
    x = drafted.long().clamp_min(0).unsqueeze(1)
    own, top = logits.gather(1, x), logits.amax(1, keepdim=True)
    most_likely = token & (own >= top)
    certain = fuzzy.unsqueeze(1) & token & (own > -torch.inf) & (top < _FORCED)
    logits.scatter_(1, x, own.masked_fill(certain, _CERTAIN))
    return most_likely.squeeze(1)
