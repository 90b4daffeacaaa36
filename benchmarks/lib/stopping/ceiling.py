"""Speeds in replay of the best fixed length, the predictors, the oracle and the predictor's ceiling.

The ceiling is the predictor trained and used with features of the target at the position that is forecast, which no
draft can know. The gap from there to the oracle is one that hardly any feature of the draft could close.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from fsd_collectors.replay import RoundPolicy, replay, sweep
from fsd_collectors.replay.rounds import RoundStarts
from fsd_predictors.datasets.examples import CEILING
from fsd_predictors.features.features import NO_HISTORY, feature_values, matrix
from fsd_predictors.features.from_traces import COLUMNS, drafted, round_context, updated_history
from fsd_predictors.stopping.dinkelbach import climb, tokens_per_second
from fsd_predictors.stopping.in_replay import InReplay
from fsd_predictors.stopping.oracle import oracle
from lib.common.paired_contest import Array
from lib.stopping.ablation import Pair, fit
from lib.stopping.contestants import rule_of
from lib.stopping.decode import MOST
from lib.stopping.rivals import FIXED
from lib.stopping.world import DIVERGENCE, KINDS, RULE, World

CEILING_NAME = "with features of the target"


def replay_rates(world: World, threshold: float) -> dict[str, float]:
    """Returns tokens per second at the measured costs, by name.

    The fixed L is chosen on the test problems themselves, which favours it.
    """
    traces, costs = world.traces("test"), world.costs

    def rate(policy: RoundPolicy) -> float:
        return replay(traces, RULE, DIVERGENCE, threshold, MOST, policy).tokens_per_second(costs)

    fixed = sweep(traces, (RULE,), (DIVERGENCE,), [threshold], range(1, MOST + 1), costs=costs)
    ours = {}
    for kind in KINDS:
        predictor = world.predictors[kind]
        rule = rule_of(world, kind, predictor.accepting, predictor.next, costs)
        policy = InReplay(rule, world.kinds, world.scale)
        ours[kind] = tokens_per_second(traces, policy, RULE, DIVERGENCE, threshold, costs, MOST)
    return {
        FIXED: float(fixed["tokens_per_second"].max()),
        **ours,
        CEILING_NAME: _ceiling(world, threshold),
        "oracle": rate(oracle(RULE)),
    }


def _ceiling(world: World, threshold: float) -> float:
    """Returns the ceiling's tokens per second, with a rate λ of its own from the tuning problems."""
    pair, costs = ceiling_models(world), world.costs

    def reached(rate: float, of: str = "tuning") -> float:
        stopping = _StopsWithTarget(world, pair, rate * (costs.draft_step + costs.position))
        return replay(world.traces(of), RULE, DIVERGENCE, threshold, MOST, stopping.policy).tokens_per_second(costs)

    return reached(climb(reached, 0.0)[-1], "test")


@lru_cache(1)
def ceiling_models(world: World) -> Pair:
    fitting, calibrating = world.training_rows(ceiling=True)
    return Pair(
        fit(world, "accepting", fitting.accepting, fitting.accepted, calibrating.accepting, calibrating.accepted),
        fit(world, "next", fitting.next, fitting.next_accepted, calibrating.next, calibrating.next_accepted),
    )


class _StopsWithTarget:
    """The throughput rule with models that read features of the target."""

    def __init__(self, world: World, pair: Pair, step: float) -> None:
        self._world, self._pair, self._step = world, pair, step
        self.policy = RoundPolicy((*COLUMNS, *CEILING), self._lengths, NO_HISTORY, updated_history)

    def _lengths(self, starts: RoundStarts) -> Array:
        lengths, lanes = np.zeros(len(starts.rows), np.int64), np.arange(len(starts.rows))
        survival = np.ones(len(lanes))
        while len(lanes):
            a, b, ends = self._forecasts(starts, lanes, int(lengths[lanes[0]]))
            survival[lanes] *= a
            lengths[lanes] += 1
            more = ~ends & (lengths[lanes] < starts.lanes.most[lanes]) & (survival[lanes] * b >= self._step)
            lanes = lanes[more]
        return lengths

    def _forecasts(self, begins: RoundStarts, lanes: Array, step: int) -> tuple[Array, Array, Array]:
        """Returns a, b and whether the token ends the text, (n,) each, for the lanes' tokens after the first `step`."""
        world, now = self._world, begins.select(lanes)
        last = now.lanes.ends - 1
        at = [np.minimum(now.rows + i, last) for i in range(step + 2)]
        steps = [drafted(now.columns, rows, world.kinds) for rows in at[:-1]]
        values = matrix(feature_values(steps, round_context(now, world.scale)))
        current, following = (np.column_stack([now.columns[name][rows] for name in CEILING]) for rows in at[-2:])
        a, b = (
            model.predict_proba(np.column_stack([values, target]))[:, 1]
            for model, target in ((self._pair.accepting, current), (self._pair.next, following))
        )
        return a, b, np.asarray(steps[-1].ends) > 0
