"""Our contestants: the throughput rule with a trained predictor, told what time costs.

Knows how λ comes from the traces of the problems to tune on, without decoding. Knows no rival.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from fsd_collectors.replay.cost import CostModel
from fsd_predictors.stopping.dinkelbach import rates_on
from fsd_predictors.stopping.in_loop import EarlyStop
from fsd_predictors.stopping.rates import Rates
from fsd_predictors.stopping.rule import Answer, Round, StoppingRule
from fsd_predictors.stopping.throughput import Forecast, Throughput
from lib.stopping.decode import MOST, Contestant
from lib.stopping.world import DIVERGENCE, RULE, World

Made = Callable[[Forecast, Forecast, Rates, str], StoppingRule]


class BeyondEnd(Throughput):
    """Does not look whether a token ends the text."""

    def goes_on(self, drafting: Round) -> Answer:
        return self.wants_more(drafting)


@lru_cache
def predicted(world: World, kind: str, costs: CostModel) -> Contestant:
    predictor = world.predictors[kind]
    return by_models(world, kind, predictor.accepting, predictor.next, costs)


def by_models(
    world: World, name: str, accepting: Forecast, following: Forecast, costs: CostModel, made: Made = Throughput
) -> Contestant:
    """One that stops by these forecasts, whatever they were trained on."""
    rule = rule_of(world, name, accepting, following, costs, made)
    return Contestant(name, policy=EarlyStop(rule, world.kinds, world.scale, DIVERGENCE))


def rule_of(
    world: World, name: str, accepting: Forecast, following: Forecast, costs: CostModel, made: Made = Throughput
) -> StoppingRule:
    def at(rates: Rates) -> StoppingRule:
        return made(accepting, following, rates, name)

    traces, thresholds = world.traces("tuning"), world.thresholds
    return at(rates_on(traces, at, world.kinds, world.scale, RULE, DIVERGENCE, thresholds, costs, MOST))
