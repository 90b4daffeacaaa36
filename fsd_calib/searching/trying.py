"""One trial: decodes as much as it takes, and writes down what was seen. Knows its fields, and decides nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

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
from fsd_decoding.profile_policy import brief

_DASHBOARD_KEY: Final = "constraints"  # where Optuna 4 kept constraints, and where optuna-dashboard reads them


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
        _write(trial, setting(configuration))
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
        _write(trial, shown(raced.seen.fuzzy, raced.seen.target, self.forecast))
        trial.set_constraint("shortfall", raced.judged.shortfall)
        trial.storage.set_trial_system_attr(trial._trial_id, _DASHBOARD_KEY, [raced.judged.shortfall])


def setting(configuration: Configuration) -> dict[str, Any]:
    """What was tried, as a study shows it; a policy and a draft where there is one."""
    policy, draft = configuration.policy, configuration.draft
    return {
        "rule": configuration.rule,
        "divergence": configuration.divergence,
        "draft_length": configuration.draft_length,
        "threshold": configuration.threshold,
        **({} if policy is None else {"policy": brief(policy)}),
        **({} if draft is None else {"draft": draft}),
    }


def shown(fuzzy: Measurement, target: Measurement, forecast: Forecast) -> dict[str, Any]:
    """What came of it on the same problems as `target`. Shares are of problems, each the mean over its seeds;
    tokens_per_second: the forecast."""
    lost = float((target.correct & ~fuzzy.correct).mean())
    gained = float((fuzzy.correct & ~target.correct).mean())
    return {
        "problems": fuzzy.problems,
        "retention": retention(fuzzy, target),
        "lost": lost,
        "gained": gained,
        "churn": lost + gained,
        "flipped": luck.flips(fuzzy, target) / fuzzy.problems,
        "tokens_per_round": fuzzy.tokens_per_round,
        "tokens_per_second": forecast.measured(fuzzy),
    }


def _write(trial: Trial, attributes: dict[str, Any]) -> None:
    for name, value in attributes.items():
        trial.set_user_attr(name, value)
