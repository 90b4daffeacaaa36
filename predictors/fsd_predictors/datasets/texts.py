"""Completions of traces along the target in memory, by problem: the drafted tokens and what accepts them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from fsd_collectors.replay.blocks import Block, blocks
from fsd_collectors.replay.cases import REPLAYABLE, Case, acceptance_levels
from fsd_collectors.store.reading import Traces
from fsd_predictors.datasets.split import problem_filter
from fsd_predictors.features.features import Array, Drafted, Value
from fsd_predictors.features.from_traces import COLUMNS, STATE, drafted, state_at, states_of
from fsd_predictors.features.token_kinds import TokenKinds


@dataclass(frozen=True)
class Texts:
    """Whole completions, stored one after another."""

    block: Block
    rule: str
    kinds: TokenKinds

    @classmethod
    def of(
        cls, traces: Traces, rule: str, divergences: Sequence[str], kinds: TokenKinds, problems: Sequence[int],
        hidden: bool = False,
    ) -> Self:  # fmt: skip
        """Loads the completions of the problems; with `hidden`, also the draft's hidden states."""
        exact = REPLAYABLE[rule].exact
        columns = ["problem", "same_token", *COLUMNS, *divergences, *([exact] if exact else [])]
        columns += [STATE] if hidden else []
        (block,) = blocks(traces, columns, problem_filter(problems), rows=1 << 62)
        return cls(block, rule, kinds)

    @cached_property
    def _start(self) -> dict[int, int]:
        starts = self.block.starts
        return dict(zip(self.block.columns["problem"][starts].tolist(), starts.tolist(), strict=True))

    def rows(self, problem: Array, position: Array) -> Array:
        """Returns the rows (r,) of positions (r,) in the texts of problems (r,)."""
        return np.array([self._start[each] for each in problem.tolist()]) + position.astype(np.int64)

    def ends(self, rows: Array) -> Array:
        """Returns, for each row (r,), the row after the last one of its text."""
        return np.asarray(self.block.ends[np.searchsorted(self.block.ends, rows, side="right")])

    def drafted(self, rows: Array) -> Drafted:
        return drafted(self.block.columns, rows, self.kinds)

    def state(self, rows: Array) -> tuple[Value, ...]:
        """Returns the hidden states at the rows, which models read after the features; see `state_at`."""
        return state_at(self._states, rows)

    @cached_property
    def _states(self) -> Array | None:
        return states_of(self.block.columns)

    def accepted(self, divergence: str, threshold: float) -> Array:
        """Returns a mask (n,) of the rows whose drafted token is accepted at this threshold."""
        case = Case(self.rule, divergence, np.array([threshold]))
        return ~acceptance_levels(case, self.block).rejected(0)
