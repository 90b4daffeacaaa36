"""Contestants that stop by the throughput rule with a trained predictor.

The rates λ come from traces of the tuning problems, without decoding.
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

MakeRule = Callable[[Forecast, Forecast, Rates, str], StoppingRule]


class BeyondEnd(Throughput):
    """The throughput rule without the check whether a token ends the text."""

    def goes_on(self, drafting: Round) -> Answer:
        return self.wants_more(drafting)


@lru_cache
def with_predictor(world: World, kind: str, costs: CostModel) -> Contestant:
    """Returns the contestant that stops by a predictor of this kind at these costs."""
    predictor = world.predictors[kind]
    return with_models(world, kind, predictor.accepting, predictor.next, costs)


def with_models(
    world: World, name: str, accepting: Forecast, following: Forecast, costs: CostModel, make: MakeRule = Throughput
) -> Contestant:
    """Returns the contestant that stops by these forecasts, whatever they were trained on."""
    rule = rule_of(world, name, accepting, following, costs, make)
    return Contestant(name, policy=EarlyStop(rule, world.kinds, world.scale, DIVERGENCE))


def rule_of(
    world: World, name: str, accepting: Forecast, following: Forecast, costs: CostModel, make: MakeRule = Throughput
) -> StoppingRule:
    """Returns the rule with these forecasts, at the rates λ that suit them."""

    def at(rates: Rates) -> StoppingRule:
        return make(accepting, following, rates, name)

    traces, thresholds = world.traces("tuning"), world.thresholds
    return at(rates_on(traces, at, world.kinds, world.scale, RULE, DIVERGENCE, thresholds, costs, MOST))
