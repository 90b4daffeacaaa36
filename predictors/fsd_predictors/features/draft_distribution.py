"""Statistics of the draft's distribution q at a drafted token, computed on the device while decoding.

The formulas are those of the draft_* columns of traces (`fsd_collectors.schema`), written with few calls to torch: a
call takes a microsecond or more, and a whole draft step of a small model some hundred.
"""

from __future__ import annotations

import torch
from torch import Tensor

MEASURED = ("entropy", "varentropy", "top1", "top2", "probability")
"""Names of the columns that `measure` returns; in traces they have the prefix draft_."""

_NEVER = -1e4  # stands for -inf, since 0 · -inf is NaN; its exponential is 0 too


def measure(logits: Tensor, drawn: Tensor) -> Tensor:
    """Returns the statistics `MEASURED` of each row, (B, 5) in fp32.

    Tokens with a logit of -inf have probability 0. A row with a logit of NaN or +inf has NaN at least in `top1`.

    Args:
        logits: (B, V) raw logits of any floating type, V >= 2.
        drawn: (B,) ids of the drafted tokens.
    """
    log = torch.log_softmax(logits.float(), -1).clamp_min_(_NEVER)
    q = log.exp()
    weighted = q * log
    first = weighted.sum(-1, True)  # -entropy
    second = weighted.mul_(log).sum(-1, True)
    varentropy = second.addcmul_(first, first, value=-1.0)
    parts = first, varentropy, q.topk(2).values, q.gather(-1, drawn.unsqueeze(-1))
    return torch.cat(parts, -1).abs_()  # all are >= 0: this turns -entropy round, and rounding errors of 0
