"""Examples that rounds over traces give: what was known, and whether the token was accepted.

Knows laid rounds, features and labels. Knows neither how rounds are laid nor how many examples are wanted.

There is one of a_j for each drafted token whose round got there, all before it being accepted, and one of b_{j+1} for
each accepted token, by what the text's next row says. Behind a token that ends the text nothing counts: there b is
false, and the round gives no more. What follows a text's last row is not known: unless its token ended the text, it is
no example of b.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from fsd_collectors.replay.blocks import Block
from fsd_collectors.replay.cases import Case
from fsd_collectors.replay.rounds import Begins, Decides, Rounds
from fsd_predictors.features.features import FEATURES, Array, known, matrix
from fsd_predictors.features.share_scale import ShareScale
from fsd_predictors.features.token_kinds import TokenKinds
from fsd_predictors.features.traced import drafted, place

CEILING = ("target_entropy", "target_varentropy", "target_top1", "target_top2")
"""What no draft knows, of the place that is forecast: shows what knowing more would bring."""

Forecast = Literal["accepting", "next"]


@dataclass(frozen=True)
class Examples:
    """n of one forecast."""

    forecast: Forecast
    values: Array  # (n, features)
    accepted: Array  # (n,) bool
    at: Array  # (n,) row of the last token drafted
    rounds: Array  # (n,) which of the rounds


@dataclass(frozen=True)
class Examining:
    """Makes examples of a block's rounds, under a case. ceiling: with `CEILING`'s columns behind the features."""

    case: Case
    block: Block
    scale: ShareScale
    kinds: TokenKinds
    ceiling: bool = False

    def __call__(self, laid: Rounds, chosen: Array) -> Iterator[Examples]:
        """Of the chosen ones of n rounds, (c,) their numbers, step after step."""
        verified, going, step = laid.verified, chosen, 0
        while len(going := going[self._drafted(laid, going, step)]):
            begins, accepted = laid.begins.taken(going), verified.accepted[going] > step
            values = self._values(begins, step)
            at, ends = begins.rows + step, values[:, FEATURES.index("ends")] > 0
            yield self._examples("accepting", values, accepted, at, at, going)
            following = np.minimum(at + 1, begins.lanes.ends - 1)
            counts = ~ends & self._decides.accepts(following, begins.lanes.thresholds)
            told = np.flatnonzero(accepted & (ends | (at + 1 < begins.lanes.ends)))
            yield self._examples("next", values[told], counts[told], at[told], following[told], going[told])
            going, step = going[accepted & ~ends], step + 1

    @cached_property
    def _decides(self) -> Decides:
        return Decides(self.case, self.block)

    def _drafted(self, laid: Rounds, rounds: Array, step: int) -> Array:
        """Those whose draft has a token there, within the text."""
        begins = laid.begins
        return (laid.verified.drafted[rounds] > step) & (begins.rows[rounds] + step < begins.lanes.ends[rounds])

    def _values(self, begins: Begins, step: int) -> Array:
        """`FEATURES` of all: (n, features)."""
        steps = [drafted(self.block.columns, begins.rows + i, self.kinds) for i in range(step + 1)]
        return matrix(known(steps, place(begins, self.scale)))

    def _examples(
        self, forecast: Forecast, values: Array, accepted: Array, at: Array, about: Array, rounds: Array
    ) -> Examples:
        if self.ceiling:
            values = np.column_stack([values, *(self.block.columns[name][about] for name in CEILING)])
        return Examples(forecast, values, accepted, at, rounds)
