"""The shape of q where a token was drawn: five numbers a row, on the device, without waiting for it.

Knows the formulas behind the draft's columns in traces (`fsd_collectors.schema`), for the loop, where every call to
torch counts: one of them takes a microsecond or more, and a draft step some hundred.
"""

from __future__ import annotations

import torch
from torch import Tensor

MEASURED = ("entropy", "varentropy", "top1", "top2", "probability")
"""The columns, in order: those of traces are called draft_*."""

_NEVER = -1e4  # for -inf, of which 0 times is NaN: its exponential is 0 all the same


def measure(logits: Tensor, drawn: Tensor) -> Tensor:
    """Raw logits (B, V) of any floating type, V >= 2, and the tokens drawn (B,) -> (B, 5) in fp32, as `MEASURED`.

    Logits of -inf count nothing; a row with NaN or +inf among them is NaN in `top1` at least.
    """
    log = torch.log_softmax(logits.float(), -1).clamp_min_(_NEVER)
    q = log.exp()
    weighted = q * log
    first = weighted.sum(-1, True)  # -entropy
    second = weighted.mul_(log).sum(-1, True)
    varentropy = second.addcmul_(first, first, value=-1.0)
    parts = first, varentropy, q.topk(2).values, q.gather(-1, drawn.unsqueeze(-1))
    return torch.cat(parts, -1).abs_()  # none is negative, but for the entropy's sign and what rounding does to 0
