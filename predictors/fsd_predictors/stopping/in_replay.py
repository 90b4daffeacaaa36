"""Stopping rules in replay: the round policy that drafts over traces as the engine would under a rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from fsd_collectors.replay.rounds import RoundPolicy, RoundStarts, Verified
from fsd_predictors.features.features import NO_HISTORY, Array, Value
from fsd_predictors.features.from_traces import (
    COLUMNS,
    STATE,
    drafted,
    round_context,
    state_at,
    states_of,
    updated_history,
)
from fsd_predictors.features.share_scale import ShareScale
from fsd_predictors.features.token_kinds import TokenKinds
from fsd_predictors.stopping.rule import Round, StoppingRule


class InReplay:
    """Makes a stopping rule into the `policy` that `replay` and `sweep` take.

    Tokens drafted after the end of a text are taken to be like its last one.
    """

    def __init__(self, rule: StoppingRule, kinds: TokenKinds, scale: ShareScale | None = None) -> None:
        self._rule, self._kinds, self._scale = rule, kinds, scale
        self._block: Mapping[str, Array] = {}  # columns that `_states` are of
        self._states: Array | None = None
        columns = (*COLUMNS, STATE) if rule.reads_state else COLUMNS
        self.policy = RoundPolicy(columns, self._lengths, (*map(float, (*NO_HISTORY, *rule.kept)),), self._remember)

    def _lengths(self, starts: RoundStarts) -> Array:
        """Returns the draft lengths (n,) of rounds."""
        most, last = starts.lanes.most, starts.lanes.ends - 1
        lengths, lanes = np.zeros(len(most), np.int64), np.arange(len(most))
        drafting = Round(round_context(starts, self._scale), tuple(starts.memory.T[len(NO_HISTORY) :]))
        while len(lanes):
            at = np.minimum(starts.rows[lanes] + len(drafting.steps), last[lanes])
            drafting.steps.append(drafted(starts.columns, at, self._kinds))
            drafting.state = self._state(starts.columns, at)
            lengths[lanes] += 1
            on = (lengths[lanes] < most[lanes]) & np.broadcast_to(self._rule.goes_on(drafting), lanes.shape)
            drafting, lanes = _select(drafting, on), lanes[on]
        return lengths

    def _state(self, columns: Mapping[str, Array], at: Array) -> tuple[Value, ...]:
        if not self._rule.reads_state:
            return ()
        if self._block is not columns:
            self._block, self._states = columns, states_of(columns)
        return state_at(self._states, at)

    def _remember(self, memory: Array, verified: Verified) -> Array:
        kept = self._rule.remembers(tuple(memory.T[len(NO_HISTORY) :]), verified.drafted, verified.accepted)
        return np.column_stack([updated_history(memory, verified), *kept])


def _select(value: Any, mask: Array) -> Any:
    """Returns the selected rows of every array in nested lists, tuples and dataclasses."""
    if isinstance(value, np.ndarray):
        return value[mask]
    if isinstance(value, (list, tuple)):
        return type(value)(_select(each, mask) for each in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: _select(getattr(value, field.name), mask) for field in fields(value)})
    return value  # the same for all rows
