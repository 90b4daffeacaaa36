"""The same yardstick for everyone in replay: best fixed length, predictor, oracle, and the predictor's ceiling.

Knows traces of the problems to test on. The ceiling is the predictor trained and used with features of the target at
the very place that is forecast, which no draft can know: what it still lacks of the oracle, hardly any feature of the
draft's would bring. Knows nothing of the engine.
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
from lib.stopping.ablation import Pair, fitted
from lib.stopping.decode import MOST, Array
from lib.stopping.predicted import rule_of
from lib.stopping.rivals import FIXED
from lib.stopping.world import DIVERGENCE, KINDS, RULE, World

CEILING_NAME = "with features of the target"


def replayed(world: World, threshold: float) -> dict[str, float]:
    """Tokens a second at the costs measured. L is chosen where it is judged, which favours the fixed length."""
    traces, costs = world.traces("test"), world.costs

    def rate(policy: RoundPolicy) -> float:
        return replay(traces, RULE, DIVERGENCE, threshold, MOST, policy).tokens_per_second(costs)

    fixed = sweep(traces, (RULE,), (DIVERGENCE,), [threshold], range(1, MOST + 1), costs=costs)
    ours = {}
    for kind in KINDS:
        predictor = world.predictors[kind]
        rule = rule_of(world, kind, predictor.accepting, predictor.next, costs)
        asked = InReplay(rule, world.kinds, world.scale)
        ours[kind] = tokens_per_second(traces, asked, RULE, DIVERGENCE, threshold, costs, MOST)
    return {
        FIXED: float(fixed["tokens_per_second"].max()),
        **ours,
        CEILING_NAME: _ceiling(world, threshold),
        "oracle": rate(oracle(RULE)),
    }


def _ceiling(world: World, threshold: float) -> float:
    """With a λ of its own, from the problems to tune on."""
    pair, costs = ceiling_models(world), world.costs

    def reached(rate: float, of: str = "tuning") -> float:
        foresees = _Foresees(world, pair, rate * (costs.draft_step + costs.position))
        return replay(world.traces(of), RULE, DIVERGENCE, threshold, MOST, foresees.policy).tokens_per_second(costs)

    return reached(climb(reached, 0.0)[-1], "test")


@lru_cache(1)
def ceiling_models(world: World) -> Pair:
    fitting, mending = world.training_rows(ceiling=True)
    return Pair(
        fitted(world, "accepting", fitting.accepting, fitting.accepted, mending.accepting, mending.accepted),
        fitted(world, "next", fitting.next, fitting.next_accepted, mending.next, mending.next_accepted),
    )


class _Foresees:
    """The throughput rule, with models that see the target."""

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

    def _forecasts(self, starts: RoundStarts, lanes: Array, step: int) -> tuple[Array, Array, Array]:
        """a, b and whether the token ends the text, (n,) each, of the lanes' tokens behind the first `step`."""
        world, now = self._world, starts.select(lanes)
        last = now.lanes.ends - 1
        at = [np.minimum(now.rows + i, last) for i in range(step + 2)]
        steps = [drafted(now.columns, rows, world.kinds) for rows in at[:-1]]
        values = matrix(feature_values(steps, round_context(now, world.scale)))
        seen, coming = (np.column_stack([now.columns[name][rows] for name in CEILING]) for rows in at[-2:])
        a, b = (
            model.predict_proba(np.column_stack([values, above]))[:, 1]
            for model, above in ((self._pair.accepting, seen), (self._pair.next, coming))
        )
        return a, b, np.asarray(steps[-1].ends) > 0
