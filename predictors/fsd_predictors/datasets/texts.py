"""Traces along the target in memory, by problem: what was drafted at every position, and what accepts it.

Knows columns of traces, by way of replay. Knows neither rounds nor models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from fsd_collectors.replay.blocks import Block, blocks
from fsd_collectors.replay.cases import REPLAYABLE, Case, grades_of
from fsd_collectors.store.reading import Traces
from fsd_predictors.datasets.split import of_problems
from fsd_predictors.features.features import Array, Drafted, Value
from fsd_predictors.features.token_kinds import TokenKinds
from fsd_predictors.features.traced import COLUMNS, STATE, drafted, state_at, states_of


@dataclass(frozen=True)
class Texts:
    """Whole completions, one behind the other."""

    block: Block
    rule: str
    kinds: TokenKinds

    @classmethod
    def of(
        cls, traces: Traces, rule: str, divergences: Sequence[str], kinds: TokenKinds, problems: Sequence[int],
        hidden: bool = False,
    ) -> Self:  # fmt: skip
        """hidden: with the draft's states."""
        exact = REPLAYABLE[rule].exact
        columns = ["problem", "same_token", *COLUMNS, *divergences, *([exact] if exact else [])]
        columns += [STATE] if hidden else []
        (block,) = blocks(traces, columns, of_problems(problems), rows=1 << 62)
        return cls(block, rule, kinds)

    @cached_property
    def _start(self) -> dict[int, int]:
        starts = self.block.starts
        return dict(zip(self.block.columns["problem"][starts].tolist(), starts.tolist(), strict=True))

    def rows(self, problem: Array, position: Array) -> Array:
        """(r,) and (r,) to (r,): where these positions of these problems' texts lie."""
        return np.array([self._start[each] for each in problem.tolist()]) + position.astype(np.int64)

    def ends(self, rows: Array) -> Array:
        """(r,) to (r,): the row behind the last of each one's text."""
        return np.asarray(self.block.ends[np.searchsorted(self.block.ends, rows, side="right")])

    def drafted(self, rows: Array) -> Drafted:
        return drafted(self.block.columns, rows, self.kinds)

    def state(self, rows: Array) -> tuple[Value, ...]:
        """What a model reads behind its features: as `state_at`."""
        return state_at(self._states, rows)

    @cached_property
    def _states(self) -> Array | None:
        return states_of(self.block.columns)

    def accepted(self, divergence: str, threshold: float) -> Array:
        """Of every row: (n,) bool."""
        case = Case(self.rule, divergence, np.array([threshold]))
        return ~grades_of(case, self.block).rejected(0)
