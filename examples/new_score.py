"""A score of one's own: how many nats a drafted token is behind the target's favourite.

In the folder of this file: fsd-inspect --score new_score:Behind@10 --threshold 1.5 "…"
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from fsd_decoding.scores import Parameter, Score, Seen


class Behind(Score):
    """log p1 - log p(x), among the k likeliest: at T a token is kept that is at most exp(T) times less likely."""

    parameters = (Parameter("k", "x must be one of the target's k likeliest tokens", usual=20, least=1),)
    largest, unit = math.inf, "nats"

    def __init__(self, written: str, values: Sequence[float]) -> None:
        super().__init__(written, values)
        self.k = self.reads_top = int(values[0])  # so that k log-probabilities in traces tell it exactly

    def of(self, seen: Seen) -> Tensor:
        behind = -seen.target.relative.log()  # of every drafted token, in whatever shape they come
        return behind.masked_fill(~seen.target.in_top(self.k), math.inf)  # infinite: no T keeps it
