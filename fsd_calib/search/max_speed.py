"""The objective to be as fast as a certificate of accuracy allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fsd_calib.engines.configuration import Configuration
from fsd_calib.measuring.evaluator import Evaluator
from fsd_calib.measuring.measurement import Measurement
from fsd_calib.search import sensitivity
from fsd_calib.search.acquisition import Prospects, all_settings, settings_at
from fsd_calib.search.candidates import choose_sequence, measure_candidates
from fsd_calib.search.forecast import Forecast, configuration_at
from fsd_calib.search.history import FinishedTrial, History, Observation
from fsd_calib.search.objective import Assessment, PairedMeasurement
from fsd_calib.search.pass_model import PassModel
from fsd_calib.search.space import Point, Space

Chance = Callable[[Measurement, Measurement], float]
"""Returns the chance of passing the test, taking the outcomes of (fuzzy, target) on the same problems as the truth."""

_DEVIATIONS = 2.5  # one look in 160 errs to one side, and only for thresholds close to the limit
_GAIN = 0.001  # share of the expected speed that a trial must be expected to add


@dataclass(frozen=True)
class MaxSpeed:
    """Maximises speed; feasible where the chance of passing the certification test is at least `wanted`.

    Args:
        chance: Returns a measured setting's chance of passing.
        description: Distinguishes studies that must not be mixed.
        pass_model: The normal approximation of the test, for settings that were not measured.
        lossless: Forecast tokens/s of lossless decoding, which needs no certificate.
        wanted: Smallest chance of passing of a feasible trial.
    """

    chance: Chance
    description: str
    pass_model: PassModel
    lossless: float
    wanted: float = 0.8

    @lru_cache(maxsize=4)  # noqa: B019  # the loop, the sampler and each untried arm call it with equal arguments
    def propose(self, history: History, space: Space, forecast: Forecast) -> Point | None:
        """Proposes the setting with the highest acquisition value; running trials are assumed to show what is
        predicted."""
        settings = all_settings(space, forecast).corrected(history.trials, forecast)
        prospects = Prospects(settings, self._observations(history), self.pass_model, self.lossless)
        evaluated = {Point(t.arm, t.logit_share) for t in history.trials}.union(history.running)
        # Repeating a trial would show nothing new.
        new = np.array([settings.point(i) not in evaluated for i in range(len(settings))])
        improvements = np.where(new, prospects.improvements, 0.0)
        at = int(improvements.argmax())
        return settings.point(at) if improvements[at] >= _GAIN * prospects.expected.max() else None

    def reason_untried(self, arm: Configuration, history: History, space: Space, forecast: Forecast) -> str:
        if self.propose(history, space, forecast) is not None:
            return "the trials ran out"
        return f"no trial of it was expected to add {_GAIN:.1%} to the speed that can be certified"

    def assess(self, paired: PairedMeasurement, forecast: Forecast) -> Assessment:
        chance = self.chance(paired.fuzzy, paired.target)
        return Assessment(forecast.measured(paired.fuzzy), self.wanted - chance, self._is_settled(paired, chance))

    def _is_settled(self, paired: PairedMeasurement, chance: float) -> bool:
        """Whether only an unusually good or bad remainder of the problems could reverse the decision."""
        fuzzy, target = paired.fuzzy, paired.target
        additional, fewer = sensitivity.plausible_flips(
            sensitivity.flips(fuzzy, target), fuzzy.problems, paired.whole, _DEVIATIONS
        )
        if chance >= self.wanted:
            return self.chance(sensitivity.worse(fuzzy, target, additional), target) >= self.wanted
        return self.chance(sensitivity.better(fuzzy, target, fewer), target) < self.wanted

    def freeze(
        self,
        trials: Sequence[FinishedTrial],
        space: Space,
        evaluator: Evaluator,
        target: Measurement,
        forecast: Forecast,
    ) -> list[Configuration]:
        """Returns the sequence with the highest expected certified speed.

        Where no test is worthwhile, the one setting faster than lossless decoding that is most likely to pass is
        returned, as an estimate; empty where nothing is faster.
        """
        if not trials:
            return []
        prospects = measure_candidates(trials, space, evaluator, target, forecast, self.pass_model, self.lossless)
        faster = np.flatnonzero(prospects.settings.speeds > self.lossless).tolist()
        chosen = choose_sequence(prospects) or sorted(faster, key=lambda i: -prospects.chances[i])[:1]
        return [configuration_at(forecast, prospects.settings.point(i)) for i in chosen]

    def _observations(self, history: History) -> list[Observation]:
        """Returns what finished trials showed and what running ones are predicted to show."""
        observed = [t.observation for t in history.trials]
        if not history.running:
            return observed
        settings = settings_at(history.running)
        predicted = Prospects(settings, observed, self.pass_model, self.lossless)
        changes = (predicted.posterior.mean - self.pass_model.lossless) / self.pass_model.per_change
        return observed + [
            Observation(*point, change, flipped, self.pass_model.tuning)
            for point, change, flipped in zip(
                history.running, changes.tolist(), predicted.flipped.tolist(), strict=True
            )
        ]
