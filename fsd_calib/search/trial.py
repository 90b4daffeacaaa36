"""One trial: decodes as many problems as a decision takes, and writes the result to the study."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from optuna.trial import Trial

from fsd_calib.engines.configuration import Configuration
from fsd_calib.measuring.evaluator import Evaluator
from fsd_calib.measuring.measurement import Measurement
from fsd_calib.search import sensitivity
from fsd_calib.search.digests import seal
from fsd_calib.search.forecast import Forecast
from fsd_calib.search.objective import Assessment, Objective, PairedMeasurement, retention
from fsd_calib.search.space import Space, arm_of
from fsd_calib.search.workers import heartbeats
from fsd_common.progress.base import Advance, Progress
from fsd_decoding.profile.parts import brief

_FIRST = 128  # problems of the first portion; fewer never settle a decision
_DASHBOARD_KEY: Final = "constraints"  # where Optuna 4 kept constraints, and where optuna-dashboard reads them


class RaceResult(NamedTuple):
    """An assessment, and the partial measurement it is based on."""

    assessment: Assessment
    paired: PairedMeasurement


def race(
    evaluator: Evaluator,
    configuration: Configuration,
    target: Measurement,
    objective: Objective,
    forecast: Forecast,
    advance: Advance,
) -> RaceResult:
    """Measures portions of the tuning part, each twice the last, until the objective finds the decision settled."""
    whole, done = len(evaluator.problems), 0
    for problems in _portions(whole):
        fuzzy = evaluator.measure(configuration, problems)
        advance(problems - done)
        done = problems
        paired = PairedMeasurement(fuzzy, target.first(problems), whole)
        assessment = objective.assess(paired, forecast)
        if assessment.settled:
            break
    return RaceResult(assessment, paired)


def _portions(whole: int) -> Iterator[int]:
    problems = _FIRST
    while problems < whole:
        yield problems
        problems *= 2
    yield whole


@dataclass(frozen=True)
class TrialRunner:
    """The objective function that optuna calls."""

    evaluator: Evaluator
    target: Measurement
    forecast: Forecast
    objective: Objective
    space: Space
    progress: Progress

    def __call__(self, trial: Trial) -> float:
        configuration = self._configuration(trial)
        _set_attributes(trial, setting_attributes(configuration))
        trying = self.progress.step(f"trying {configuration}", len(self.evaluator.problems))
        with heartbeats(trial), trying as advance:
            result = race(self.evaluator, configuration, self.target, self.objective, self.forecast, advance)
        self._record(trial, result)
        seal(trial, result.assessment.value)
        return result.assessment.value

    def _configuration(self, trial: Trial) -> Configuration:
        """Returns the sampler's choice; suggesting the parameters is what writes them to the study."""
        space, forecast = self.space, self.forecast
        chosen: dict[str, Any] = {
            name: trial.suggest_categorical(name, choices) for name, choices in space.choices.items()
        }
        arm = arm_of(chosen)
        return arm.at(forecast.threshold(arm, trial.suggest_float("logit_share", forecast.lowest, forecast.highest)))

    def _record(self, trial: Trial, result: RaceResult) -> None:
        _set_attributes(trial, measured_attributes(result.paired.fuzzy, result.paired.target, self.forecast))
        trial.set_constraint("shortfall", result.assessment.shortfall)
        trial.storage.set_trial_system_attr(trial._trial_id, _DASHBOARD_KEY, [result.assessment.shortfall])


def setting_attributes(configuration: Configuration) -> dict[str, Any]:
    """Returns the study's attributes of a configuration; policy, draft and tree only where there is one."""
    policy, draft, tree = configuration.policy, configuration.draft, configuration.tree
    return {
        "rule": configuration.rule,
        "divergence": configuration.divergence,
        "draft_length": configuration.draft_length,
        "threshold": configuration.threshold,
        **({} if policy is None else {"policy": brief(policy)}),
        **({} if draft is None else {"draft": draft}),
        **({} if tree is None else {"tree": tree.text}),
    }


def measured_attributes(fuzzy: Measurement, target: Measurement, forecast: Forecast) -> dict[str, Any]:
    """Returns the study's attributes of a result, on the same problems as `target`.

    `lost`, `gained` and `churn` are shares of problems, averaged over seeds; `tokens_per_second` is computed from the
    measured rounds.
    """
    lost = float((target.correct & ~fuzzy.correct).mean())
    gained = float((fuzzy.correct & ~target.correct).mean())
    return {
        "problems": fuzzy.problems,
        "retention": retention(fuzzy, target),
        "lost": lost,
        "gained": gained,
        "churn": lost + gained,
        "flipped": sensitivity.flips(fuzzy, target) / fuzzy.problems,
        "tokens_per_round": fuzzy.tokens_per_round,
        "tokens_per_second": forecast.measured(fuzzy),
    }


def _set_attributes(trial: Trial, attributes: dict[str, Any]) -> None:
    for name, value in attributes.items():
        trial.set_user_attr(name, value)
