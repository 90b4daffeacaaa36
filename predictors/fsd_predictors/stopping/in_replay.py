"""Stopping rules over traces: the rounds that the engine would draft under them, asked of replay.

Knows rounds as replay lays them, and how a rule is asked. Knows neither rules' formulas nor the engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from fsd_collectors.replay.rounds import Begins, RoundPolicy, Verified
from fsd_predictors.features.features import NO_HISTORY, Array, Value
from fsd_predictors.features.share_scale import ShareScale
from fsd_predictors.features.token_kinds import TokenKinds
from fsd_predictors.features.traced import COLUMNS, STATE, drafted, place, remembered, state_at, states_of
from fsd_predictors.stopping.rule import Round, StoppingRule


class InReplay:
    """A rule for `replay` and `sweep`, as `policy`. What is beyond a text's end is taken to be like its last token."""

    def __init__(self, rule: StoppingRule, kinds: TokenKinds, scale: ShareScale | None = None) -> None:
        self._rule, self._kinds, self._scale = rule, kinds, scale
        self._block: Mapping[str, Array] = {}  # whose states these are
        self._states: Array | None = None
        columns = (*COLUMNS, STATE) if rule.reads_state else COLUMNS
        self.policy = RoundPolicy(columns, self._lengths, (*map(float, (*NO_HISTORY, *rule.kept)),), self._remember)

    def _lengths(self, begins: Begins) -> Array:
        """(n,) tokens that rounds propose."""
        most, last = begins.lanes.most, begins.lanes.ends - 1
        lengths, lanes = np.zeros(len(most), np.int64), np.arange(len(most))
        drafting = Round(place(begins, self._scale), tuple(begins.memory.T[len(NO_HISTORY) :]))
        while len(lanes):
            at = np.minimum(begins.rows[lanes] + len(drafting.steps), last[lanes])
            drafting.steps.append(drafted(begins.columns, at, self._kinds))
            drafting.state = self._state(begins.columns, at)
            lengths[lanes] += 1
            on = (lengths[lanes] < most[lanes]) & np.broadcast_to(self._rule.goes_on(drafting), lanes.shape)
            drafting, lanes = _taken(drafting, on), lanes[on]
        return lengths

    def _state(self, columns: Mapping[str, Array], at: Array) -> tuple[Value, ...]:
        if not self._rule.reads_state:
            return ()
        if self._block is not columns:
            self._block, self._states = columns, states_of(columns)
        return state_at(self._states, at)

    def _remember(self, memory: Array, verified: Verified) -> Array:
        kept = self._rule.remembers(tuple(memory.T[len(NO_HISTORY) :]), verified.drafted, verified.accepted)
        return np.column_stack([remembered(memory, verified), *kept])


def _taken(known: Any, which: Array) -> Any:
    """Of the chosen rows alone."""
    if isinstance(known, np.ndarray):
        return known[which]
    if isinstance(known, (list, tuple)):
        return type(known)(_taken(one, which) for one in known)
    if is_dataclass(known) and not isinstance(known, type):
        return replace(known, **{field.name: _taken(getattr(known, field.name), which) for field in fields(known)})
    return known  # one for all rows
