"""Labelled examples for the models of acceptance, from rounds simulated over traces.

There is one example of a_j for each drafted token that verification reached, all tokens before it being accepted, and
one of b_{j+1} for each accepted token, labelled by the text's next row. Tokens after one that ends the text do not
count: there b is false and the round gives no further examples. The row after a text's last one is not in the traces,
so the last token is an example of b only where it ends the text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from fsd_collectors.replay.blocks import Block
from fsd_collectors.replay.cases import Case
from fsd_collectors.replay.rounds import DraftVerifier, Rounds, RoundStarts
from fsd_predictors.features.features import FEATURES, Array, feature_values, matrix
from fsd_predictors.features.from_traces import drafted, round_context
from fsd_predictors.features.share_scale import ShareScale
from fsd_predictors.features.token_kinds import TokenKinds

CEILING = ("target_entropy", "target_varentropy", "target_top1", "target_top2")
"""Features that no draft knows, of the position that is forecast: they bound what better features could gain."""

Forecast = Literal["accepting", "next"]


@dataclass(frozen=True)
class Examples:
    """n examples of one forecast."""

    forecast: Forecast
    values: Array  # (n, features)
    accepted: Array  # (n,) bool
    at: Array  # (n,) row of the last drafted token
    rounds: Array  # (n,) index of the example's round


@dataclass(frozen=True)
class ExampleMaker:
    """Makes examples of rounds over a block; with `ceiling`, the columns `CEILING` follow the features."""

    case: Case
    block: Block
    scale: ShareScale
    kinds: TokenKinds
    ceiling: bool = False

    def __call__(self, rounds: Rounds, chosen: Array) -> Iterator[Examples]:
        """Yields the examples of the rounds at indices `chosen` (c,), one step of the drafts after another."""
        verified, going, step = rounds.verified, chosen, 0
        while len(going := going[self._has_token(rounds, going, step)]):
            starts, accepted = rounds.starts.select(going), verified.accepted[going] > step
            values = self._values(starts, step)
            at, ends = starts.rows + step, values[:, FEATURES.index("ends")] > 0
            yield self._examples("accepting", values, accepted, at, at, going)
            following = np.minimum(at + 1, starts.lanes.ends - 1)
            next_accepted = ~ends & self._verifier.accepts(following, starts.lanes.thresholds)
            kept = np.flatnonzero(accepted & (ends | (at + 1 < starts.lanes.ends)))
            yield self._examples("next", values[kept], next_accepted[kept], at[kept], following[kept], going[kept])
            going, step = going[accepted & ~ends], step + 1

    @cached_property
    def _verifier(self) -> DraftVerifier:
        return DraftVerifier(self.case, self.block)

    def _has_token(self, rounds: Rounds, chosen: Array, step: int) -> Array:
        """Returns whether the draft of each chosen round has a token at this step, within the text."""
        starts = rounds.starts
        return (rounds.verified.drafted[chosen] > step) & (starts.rows[chosen] + step < starts.lanes.ends[chosen])

    def _values(self, starts: RoundStarts, step: int) -> Array:
        """Returns the features (n, features) of n rounds after this step."""
        steps = [drafted(self.block.columns, starts.rows + i, self.kinds) for i in range(step + 1)]
        return matrix(feature_values(steps, round_context(starts, self.scale)))

    def _examples(
        self, forecast: Forecast, values: Array, accepted: Array, at: Array, about: Array, rounds: Array
    ) -> Examples:
        if self.ceiling:
            values = np.column_stack([values, *(self.block.columns[name][about] for name in CEILING)])
        return Examples(forecast, values, accepted, at, rounds)
