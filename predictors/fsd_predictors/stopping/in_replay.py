"""Stopping rules in replay: round policies that draft over traces as the engine would, and the λ found with them.

Dinkelbach (1967), Management Science 13(7): to maximise N/D, maximise N − λD and set λ to the ratio N/D of the
solution; λ then rises to the largest ratio superlinearly from any start below it. Here N counts tokens, D the seconds
of a `CostModel`, and the throughput rule maximises N − λD as far as it can forecast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from fsd_collectors.replay.blocks import Traces
from fsd_collectors.replay.cost import CostModel
from fsd_collectors.replay.rounds import RoundPolicy, RoundStarts, Verified
from fsd_collectors.replay.simulation import replay
from fsd_predictors.features import (
    COLUMNS,
    NO_HISTORY,
    STATE,
    Array,
    TokenKinds,
    Value,
    drafted,
    round_context,
    state_at,
    states_of,
    updated_history,
)
from fsd_predictors.share_scale import ShareScale
from fsd_predictors.stopping.rule import Rates, Round, StoppingRule


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


_CLOSE = 1e-4  # relative tolerance
_MOST = 30  # iterations


def climb(reached: Callable[[float], float], start: float) -> list[float]:
    """Returns the rising iterates of λ, from `start` on.

    Args:
        reached: tokens per second that the rule reaches when it is given a λ.
        start: a λ that is too low.
    """
    iterates = [start]
    while len(iterates) < _MOST and (rate := reached(iterates[-1])) > iterates[-1] * (1 + _CLOSE):
        iterates.append(rate)
    return iterates


def rates_on(
    traces: Traces,
    throughput: Callable[[Rates], StoppingRule],
    kinds: TokenKinds,
    scale: ShareScale,
    rule: str,
    score: str,
    thresholds: Iterable[float],
    costs: CostModel,
    most: int,
    where: Any = None,
) -> Rates:
    """Finds λ at each threshold, on the completions that `where` selects.

    Args:
        traces: traces along the target.
        throughput: makes the stopping rule from rates.
        rule, score: acceptance rule and its score, see `replay`.
        thresholds: thresholds to find λ at.
        costs: seconds of draft steps and verifications.
        most: L, the longest draft.

    Raises:
        UsageError: as `replay`, or there are no thresholds.
    """
    rates: dict[float, float] = {}  # by share
    lowest = float(costs.tokens_per_second(tokens=1, rounds=1, drafted=1))  # where every draft is rejected
    for threshold in sorted(thresholds):
        share = scale.of(score, threshold)

        def reached(rate: float, threshold: float = threshold, share: float = share) -> float:
            stopping = InReplay(throughput(Rates((share,), (rate,), costs)), kinds, scale)
            found = replay(traces, rule, score, threshold, most, stopping.policy, where)
            return found.tokens_per_second(costs)

        rates[share] = climb(reached, lowest)[-1]
    return Rates(tuple(rates), tuple(rates.values()), costs)
