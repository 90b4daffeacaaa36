"""One trial: decodes as much as it takes, and writes down what was seen. Knows its fields, and decides nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from optuna.trial import Trial

from fsd_calib.measuring.bench import Bench
from fsd_calib.measuring.configuration import Configuration
from fsd_calib.measuring.measurement import Measurement
from fsd_calib.progress import Progress
from fsd_calib.searching import luck
from fsd_calib.searching.forecast import Forecast
from fsd_calib.searching.goal import Goal, retention
from fsd_calib.searching.racing import Raced, race
from fsd_calib.searching.space import Space


@dataclass(frozen=True)
class Trying:
    """Optuna's objective."""

    bench: Bench
    target: Measurement
    forecast: Forecast
    goal: Goal
    space: Space
    progress: Progress

    def __call__(self, trial: Trial) -> float:
        configuration = self._configuration(trial)
        trial.set_user_attr("threshold", configuration.threshold)
        with self.progress.step(f"trying {configuration}", len(self.bench.problems)) as advance:
            raced = race(self.bench, configuration, self.target, self.goal, self.forecast, advance)
        self._write_down(trial, raced)
        return raced.judged.value

    def _configuration(self, trial: Trial) -> Configuration:
        """As the sampler chose it; asking for the parameters is what writes them down."""
        space, forecast = self.space, self.forecast
        chosen: dict[str, Any] = {
            name: trial.suggest_categorical(name, choices) for name, choices in space.choices.items()
        }
        arm = Configuration(**chosen)
        return arm.at(forecast.threshold(arm, trial.suggest_float("logit_share", forecast.lowest, forecast.highest)))

    def _write_down(self, trial: Trial, raced: Raced) -> None:
        fuzzy, target = raced.seen.fuzzy, raced.seen.target
        trial.set_user_attr("problems", fuzzy.problems)
        trial.set_user_attr("retention", retention(fuzzy, target))
        trial.set_user_attr("change", fuzzy.accuracy - target.accuracy)
        trial.set_user_attr("flipped", luck.flips(fuzzy, target) / fuzzy.problems)
        trial.set_user_attr("tokens_per_round", fuzzy.tokens_per_round)
        trial.set_user_attr("tokens_per_second", self.forecast.measured(fuzzy))
        trial.set_constraint("shortfall", raced.judged.shortfall)
