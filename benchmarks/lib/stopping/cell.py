"""All measurements at one threshold and one temperature."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import cached_property
from typing import Any

from fsd_collectors.replay.cost import CostModel
from fsd_decoding.decoder import SpeculativeDecoder
from lib.common.paired_contest import Faster, Timed, contest
from lib.stopping.ablation import ablations
from lib.stopping.ceiling import replay_rates
from lib.stopping.contestants import with_predictor
from lib.stopping.decode import BATCH, Contestant, Counts
from lib.stopping.forecast_quality import forecast_quality
from lib.stopping.oracle import oracle_contestant
from lib.stopping.rivals import FIXED, families, tune
from lib.stopping.step_time import step_time
from lib.stopping.world import KINDS, World

ORACLE = "oracle"
OURS = KINDS[0]


class Cell:
    """One threshold of a `World`. Its public methods are the parts of the measurement."""

    def __init__(self, world: World, threshold: float) -> None:
        self._world, self._threshold = world, threshold
        self._setting = world.setting(threshold, world.sets.test)

    @cached_property
    def _tuned(self) -> dict[str, Contestant]:
        world = self._world
        setting, problems = world.setting(self._threshold, world.sets.tuning), world.sets.tuning.problems
        every = 1 if world.size.all_rivals else 10
        return {
            name: tune(setting, candidates[::every], problems, world.costs)
            for name, candidates in families(world.kinds, world.decoder.eos).items()
        }

    def _contestants(self, costs: CostModel) -> dict[str, Contestant]:
        """Returns the tuned rivals, and the predictors with rates for these costs."""
        return self._tuned | {kind: with_predictor(self._world, kind, costs) for kind in KINDS}

    def contest(self) -> dict[str, Any]:
        size = self._world.size
        return self._timed(self._world.decoder, self._world.costs, size.timed)

    def delayed(self) -> dict[str, Any]:
        """Times contestants with a slower draft; nothing is tuned or trained again."""
        world = self._world
        return self._timed(world.slower, world.slower_costs, world.size.timed_delayed)

    def _timed(self, decoder: SpeculativeDecoder, costs: CostModel, count: int) -> dict[str, Any]:
        world = self._world
        setting, problems = world.setting(self._threshold, world.sets.test, decoder), world.few(count)
        contestants = self._contestants(costs) | {ORACLE: oracle_contestant(setting, problems, 1)}
        timed = contest(setting, contestants, problems, world.size.repeats)
        rates = {name: of.rate for name, of in timed.items()}
        return {
            "costs": asdict(costs),
            "problems": len(problems),
            "settings": {name: by.name for name, by in self._tuned.items()},
            "tokens_per_second": rates,
            "accuracy": {name: float(of.right.mean()) for name, of in timed.items()},
            "gains": {kind: _gains(kind, timed) for kind in KINDS},
            "closed": {kind: _closed(rates, kind) for kind in KINDS},
        }

    def counts(self) -> dict[str, Any]:
        """Decodes in batches, and prices the counts at the costs of a single stream."""
        costs, counted = self._world.costs, self._counted
        rates = {name: counts.rate(costs) for name, counts in counted.items()}
        return {
            "problems": self._world.size.counted,
            "of": {name: counts.summary(costs) for name, counts in counted.items()},
            "closed": {kind: _closed(rates, kind) for kind in KINDS},
        }

    @cached_property
    def _counted(self) -> dict[str, Counts]:
        problems = self._world.few(self._world.size.counted)
        oracle = oracle_contestant(self._setting, problems, BATCH)
        contestants = self._contestants(self._world.costs) | {ORACLE: oracle}
        return {name: self._setting.counts(problems, by) for name, by in contestants.items()}

    def replay(self) -> dict[str, Any]:
        """Replays traces of the same problems, also with features of the target, which are the predictor's ceiling."""
        rates = replay_rates(self._world, self._threshold)
        ours = [name for name in rates if name not in (FIXED, ORACLE)]
        return {"tokens_per_second": rates, "closed": {name: _closed(rates, name) for name in ours}}

    def ablation(self) -> dict[str, Any]:
        world = self._world
        whole = self._counted[OURS].rate(world.costs)
        rates = {
            name: self._setting.counts(world.few(world.size.counted), by).rate(world.costs)
            for name, by in ablations(world).items()
        }
        return {
            "tokens_per_second": {OURS: whole} | rates,
            "loss": {name: rate / whole - 1 for name, rate in rates.items()},
        }

    def forecast(self) -> dict[str, Any]:
        return forecast_quality(self._world, self._threshold)

    def step(self) -> dict[str, Any]:
        """Times the policies of all contestants that have one."""
        problems = self._world.few(self._world.size.stepped)
        contestants = self._contestants(self._world.costs).items()
        times = {name: step_time(self._setting, by, problems) for name, by in contestants if by.policy is not None}
        delayed = 1e6 * self._world.slower_costs.draft_step
        return {name: of | {"asked_share_delayed": of["asked"] / delayed} for name, of in times.items()}


def _gains(kind: str, timed: Mapping[str, Timed]) -> dict[str, dict[str, float]]:
    return {rival: asdict(Faster.of(timed[kind], other)) for rival, other in timed.items() if rival != kind}


def _closed(rates: Mapping[str, float], name: str) -> float:
    """Returns the share of the oracle's gap that is closed: (R - R_best_L) / (R_oracle - R_best_L)."""
    return (rates[name] - rates[FIXED]) / (rates[ORACLE] - rates[FIXED])
