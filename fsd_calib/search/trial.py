"""One trial: decodes as much as it takes, and writes down what was seen. Knows its fields, and decides nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from optuna.trial import Trial

from fsd_calib.measuring.configuration import Configuration
from fsd_calib.measuring.evaluator import Evaluator
from fsd_calib.measuring.measurement import Measurement
from fsd_calib.progress import Advance, Progress
from fsd_calib.search import outcome_shifts
from fsd_calib.search.forecast import Forecast
from fsd_calib.search.objective import Assessment, Objective, PairedMeasurement, retention
from fsd_calib.search.space import Space
from fsd_decoding.profile.policy import brief

# MERGED: """Decodes only as much of the tuning part as a decision takes. Knows portions, and asks the goal when to stop."""


_FIRST = 128  # problems; fewer settle nothing


class Raced(NamedTuple):
    """A judgement, and the partial estimates it rests on."""

    judged: Assessment
    seen: PairedMeasurement


def race(
    evaluator: Evaluator,
    configuration: Configuration,
    target: Measurement,
    objective: Objective,
    forecast: Forecast,
    advance: Advance,
) -> Raced:
    """On portions, each twice the last, until the goal finds the matter settled or none is left."""
    whole, before = len(evaluator.problems), 0
    for problems in _portions(whole):
        fuzzy = evaluator.measure(configuration, problems)
        advance(problems - before)
        before = problems
        seen = PairedMeasurement(fuzzy, target.first(problems), whole)
        judged = objective.judge(seen, forecast)
        if judged.settled:
            break
    return Raced(judged, seen)


def _portions(whole: int) -> Iterator[int]:
    problems = _FIRST
    while problems < whole:
        yield problems
        problems *= 2
    yield whole


_DASHBOARD_KEY: Final = "constraints"  # where Optuna 4 kept constraints, and where optuna-dashboard reads them


@dataclass(frozen=True)
class Trying:
    """Optuna's objective."""

    evaluator: Evaluator
    target: Measurement
    forecast: Forecast
    objective: Objective
    space: Space
    progress: Progress

    def __call__(self, trial: Trial) -> float:
        configuration = self._configuration(trial)
        _write(trial, setting(configuration))
        with self.progress.step(f"trying {configuration}", len(self.evaluator.problems)) as advance:
            raced = race(self.evaluator, configuration, self.target, self.objective, self.forecast, advance)
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
        "flipped": outcome_shifts.flips(fuzzy, target) / fuzzy.problems,
        "tokens_per_round": fuzzy.tokens_per_round,
        "tokens_per_second": forecast.measured(fuzzy),
    }


def _write(trial: Trial, attributes: dict[str, Any]) -> None:
    for name, value in attributes.items():
        trial.set_user_attr(name, value)
