"""All that is measured at one T of one sampling.

Knows the parts of the measurement and how they become numbers. How each is done is in the file of its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import cached_property
from typing import Any

from fsd_collectors.replay.cost import CostModel
from fsd_decoding.decoder import SpeculativeDecoder
from lib.stopping.ablation import ablations
from lib.stopping.ceiling import replayed
from lib.stopping.clairvoyant import clairvoyant
from lib.stopping.contest import Faster, Timed, contest
from lib.stopping.decode import BATCH, Contestant, Counts
from lib.stopping.forecast_quality import forecast_quality
from lib.stopping.predicted import predicted
from lib.stopping.rivals import FIXED, families, tuned
from lib.stopping.step_time import step_time
from lib.stopping.world import KINDS, World

ORACLE = "oracle"
OURS = KINDS[0]


class Cell:
    """Methods that have no underscore are parts of the measurement, in their order."""

    def __init__(self, world: World, threshold: float) -> None:
        self._world, self._threshold = world, threshold
        self._setting = world.setting(threshold, world.sets.test)

    @cached_property
    def _tuned(self) -> dict[str, Contestant]:
        world = self._world
        setting, problems = world.setting(self._threshold, world.sets.tuning), world.sets.tuning.problems
        every = 1 if world.size.all_rivals else 10
        return {
            name: tuned(setting, candidates[::every], problems, world.costs)
            for name, candidates in families(world.kinds, world.decoder.eos).items()
        }

    def _contestants(self, costs: CostModel) -> dict[str, Contestant]:
        """Rivals as they were tuned; predictors told of the costs."""
        ours = {kind: predicted(self._world, kind, costs) for kind in KINDS}
        return self._tuned | ours

    def contest(self) -> dict[str, Any]:
        size = self._world.size
        return self._timed(self._world.decoder, self._world.costs, size.timed)

    def delayed(self) -> dict[str, Any]:
        """Nothing is tuned or trained again."""
        world = self._world
        return self._timed(world.slower, world.slower_costs, world.size.timed_delayed)

    def _timed(self, decoder: SpeculativeDecoder, costs: CostModel, count: int) -> dict[str, Any]:
        world = self._world
        setting, problems = world.setting(self._threshold, world.sets.test, decoder), world.few(count)
        all_ = self._contestants(costs) | {ORACLE: clairvoyant(setting, problems, 1)}
        timed = contest(setting, all_, problems, world.size.repeats)
        rates = {name: one.rate for name, one in timed.items()}
        return {
            "costs": asdict(costs),
            "problems": len(problems),
            "settings": {name: by.name for name, by in self._tuned.items()},
            "tokens_per_second": rates,
            "accuracy": {name: float(one.right.mean()) for name, one in timed.items()},
            "gains": {kind: _gains(kind, timed) for kind in KINDS},
            "closed": {kind: _closed(rates, kind) for kind in KINDS},
        }

    def counts(self) -> dict[str, Any]:
        """In batches, on all problems to test on, at the costs of a single row."""
        counted = self._counted
        rates = {name: one.rate(self._world.costs) for name, one in counted.items()}
        return {
            "problems": self._world.size.counted,
            "of": {name: one.told(self._world.costs) for name, one in counted.items()},
            "closed": {kind: _closed(rates, kind) for kind in KINDS},
        }

    @cached_property
    def _counted(self) -> dict[str, Counts]:
        problems = self._world.few(self._world.size.counted)
        oracle = clairvoyant(self._setting, problems, BATCH)
        contestants = self._contestants(self._world.costs) | {ORACLE: oracle}
        return {name: self._setting.counted(problems, by) for name, by in contestants.items()}

    def replay(self) -> dict[str, Any]:
        """The same from traces of the same problems, and with features of the target: the ceiling."""
        rates = replayed(self._world, self._threshold)
        ours = [name for name in rates if name not in (FIXED, ORACLE)]
        return {"tokens_per_second": rates, "closed": {name: _closed(rates, name) for name in ours}}

    def ablation(self) -> dict[str, Any]:
        world = self._world
        whole = self._counted[OURS].rate(world.costs)
        found = {
            name: self._setting.counted(world.few(world.size.counted), by).rate(world.costs)
            for name, by in ablations(world).items()
        }
        return {
            "tokens_per_second": {OURS: whole} | found,
            "loss": {name: rate / whole - 1 for name, rate in found.items()},
        }

    def forecast(self) -> dict[str, Any]:
        return forecast_quality(self._world, self._threshold)

    def step(self) -> dict[str, Any]:
        """Of everybody who is asked at every step."""
        problems = self._world.few(self._world.size.stepped)
        asked = {name: by for name, by in self._contestants(self._world.costs).items() if by.policy is not None}
        found = {name: step_time(self._setting, by, problems) for name, by in asked.items()}
        delayed = 1e6 * self._world.slower_costs.draft_step
        return {name: of | {"asked_share_delayed": of["asked"] / delayed} for name, of in found.items()}


def _gains(kind: str, timed: Mapping[str, Timed]) -> dict[str, dict[str, float]]:
    return {rival: asdict(Faster.of(timed[kind], other)) for rival, other in timed.items() if rival != kind}


def _closed(rates: Mapping[str, float], name: str) -> float:
    """Share of the oracle's gap: (R - R_bestL) / (R_oracle - R_bestL)."""
    return (rates[name] - rates[FIXED]) / (rates[ORACLE] - rates[FIXED])
