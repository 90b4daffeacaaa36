"""The search loop: runs trials until the objective proposes no more or the budget of trials is spent."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Final

from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from fsd_calib.measuring.evaluator import Evaluator
from fsd_calib.measuring.measurement import Measurement, flips
from fsd_calib.search.forecast import Forecast
from fsd_calib.search.objective import Assessment, FinishedTrial, History, Objective, retention
from fsd_calib.search.sampler import (
    NothingLeftError,
    Propose,
    ProposingSampler,
    Workers,
    fail_dead_trials,
    heartbeats,
    history_of,
)
from fsd_calib.search.space import Point, Space, arm_of
from fsd_calib.search.study_storage import add_attributes, damaged, first_recorded, open_study, recorded, seal
from fsd_common.digests import facts_digest
from fsd_common.progress.base import Advance, Progress, Waiting
from fsd_decoding.profile.setting import Setting

_FIRST = 128  # problems of the first portion; fewer never settle a decision
_DASHBOARD_KEY: Final = "constraints"  # where Optuna 4 kept constraints, and where optuna-dashboard reads them


def race(
    evaluator: Evaluator, setting: Setting, target: Measurement, objective: Objective, forecast: Forecast,
    advance: Advance,
) -> tuple[Assessment, Measurement]:  # fmt: skip
    """Measures portions of the tuning part, each twice the last, until the objective finds the decision settled."""
    whole, done, problems = len(evaluator.problems), 0, _FIRST
    while True:
        problems = min(problems, whole)
        fuzzy = evaluator.measure(setting, problems)
        advance(problems - done)
        assessment = objective.assess(fuzzy, target.first(problems), whole, forecast)
        if assessment.settled or problems == whole:
            return assessment, fuzzy
        done, problems = problems, 2 * problems


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
        setting = self._setting(trial)
        _set_attributes(trial, setting_attributes(setting))
        trying = self.progress.step(f"trying {setting}", len(self.evaluator.problems))
        with heartbeats(trial), trying as advance:
            found, fuzzy = race(self.evaluator, setting, self.target, self.objective, self.forecast, advance)
        _set_attributes(trial, measured_attributes(fuzzy, self.target.first(fuzzy.problems), self.forecast))
        trial.set_constraint("shortfall", found.shortfall)
        trial.storage.set_trial_system_attr(trial._trial_id, _DASHBOARD_KEY, [found.shortfall])
        seal(trial, found.value)
        return found.value

    def _setting(self, trial: Trial) -> Setting:
        """Returns the sampler's choice; suggesting the parameters is what writes them to the study."""
        space, forecast = self.space, self.forecast
        chosen: dict[str, Any] = {
            name: trial.suggest_categorical(name, choices) for name, choices in space.choices.items()
        }
        arm = arm_of(chosen)
        return arm.at(forecast.threshold(arm, trial.suggest_float("logit_share", forecast.lowest, forecast.highest)))


def setting_attributes(setting: Setting) -> dict[str, Any]:
    """Returns the study's attributes of a setting; policy, draft, tree and width only where there is one."""
    policy, draft, tree, width = setting.policy, setting.draft, setting.tree, setting.width
    return {
        "rule": setting.rule,
        "score": setting.score,
        "draft_length": setting.draft_length,
        "threshold": setting.threshold,
        **({} if policy is None else {"policy": str(policy)}),
        **({} if draft is None else {"draft": draft}),
        **({} if tree is None else {"tree": tree.text}),
        **({} if width is None else {"width": width}),
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
        "flipped": flips(fuzzy, target) / fuzzy.problems,
        "tokens_per_round": fuzzy.tokens_per_round,
        "tokens_per_second": forecast.measured(fuzzy),
    }


def _set_attributes(trial: Trial, attributes: dict[str, Any]) -> None:
    for name, value in attributes.items():
        trial.set_user_attr(name, value)


_POLL = 0.5  # seconds between checks of other workers' trials


@dataclass(frozen=True)
class SearchResult:
    """The state of a study after a search.

    Attributes:
        trials: The finished trials of the study when the first of its processes ended the search.
        untried: A sentence on the arms without a trial: how many, and why; empty where there are none.
    """

    trials: tuple[FinishedTrial, ...]
    untried: str


def search(
    evaluator: Evaluator,
    target: Measurement,
    forecast: Forecast,
    space: Space,
    objective: Objective,
    storage: str | None,
    name: str,
    trials: int,
    progress: Progress,
    seen: Callable[[Sequence[FinishedTrial]], None] = lambda trials: None,
) -> SearchResult:
    """Continues the study of that name, or begins it. Finished trials are not repeated; those of killed processes are.

    The first process that finds nothing left to try records which trials the search ended with, and all processes, also
    later ones with the same budget, return those.

    Args:
        evaluator: Measures on the tuning part.
        target: Measurement of the target alone on all of it.
        storage: None: in memory; a path: a journal file; else a database URL. Several processes may share one.
        name: Name of the study; must differ where models, task or settings do.
        trials: Budget of finished trials, including earlier ones and those of other workers.
        seen: Receives the finished trials whenever there are more.

    Raises:
        UsageError: The storage cannot be opened, or the study of that name belongs to another search.
    """

    def propose(history: History) -> Point | None:
        """Returns the next point within the budget."""
        if len(history.trials) + len(history.running) >= trials:
            return None
        return objective.propose(history, space, forecast)

    workers = Workers()
    sampler = ProposingSampler(propose, space, forecast.lowest, forecast.highest, workers)
    runner = TrialRunner(evaluator, target, forecast, objective, space, progress)
    identity = _identity(space, objective, evaluator)
    with (
        open_study(storage, name, identity, sampler) as study,
        progress.step(f"searching, at most {trials} trials", trials) as advance,
    ):
        history = _loop(study, runner, propose, workers, f"ended with at most {trials} trials", advance, seen)
    reason_untried = partial(objective.reason_untried, history=history, space=space, forecast=forecast)
    return SearchResult(history.trials, _untried(history, space, reason_untried))


def freeze(
    searched: SearchResult,
    space: Space,
    evaluator: Evaluator,
    target: Measurement,
    forecast: Forecast,
    objective: Objective,
) -> list[Setting]:
    """Returns the settings to certify, safest first, chosen on the tuning part alone.

    Thresholds between two that were tried may be measured for it. Empty where no trial finished.
    """
    return objective.freeze(searched.trials, space, evaluator, target, forecast)


def record_recounts(
    searched: SearchResult,
    evaluator: Evaluator,
    target: Measurement,
    forecast: Forecast,
    storage: str | None,
    name: str,
) -> None:
    """Adds to the study what freezing measured on the whole tuning part and no trial did.

    They become attributes of the study, `recounted 1` and so on, since those of a finished trial are final. A study in
    memory gets none.
    """
    known = {(t.setting, t.problems) for t in searched.trials}
    whole = [m for m in evaluator.measured() if m.setting.threshold is not None and m.problems == target.problems]
    recounted = [m for m in whole if (m.setting, m.problems) not in known]
    if storage is not None and recounted:
        counted = [setting_attributes(m.setting) | measured_attributes(m, target, forecast) for m in recounted]
        add_attributes(storage, name, {f"recounted {number}": values for number, values in enumerate(counted, 1)})


def _loop(
    study: Study, runner: TrialRunner, propose: Propose, workers: Workers, end: str, advance: Advance,
    seen: Callable[[Sequence[FinishedTrial]], None],
) -> History:  # fmt: skip
    """Runs trials; where no point is proposed while other workers still run trials, waits for their results.

    Args:
        end: The study's attribute with the numbers of the trials that the search ended with.
    """
    reported, waiting = 0, Waiting(runner.progress, "has begun the last trials of this study")
    while True:
        fail_dead_trials(study)
        ended = recorded(study, end)  # read before the trials, so that these are all among them
        trials = study.get_trials(deepcopy=False)
        if ended is not None:
            return history_of(_counted(trials, ended), workers)
        history = history_of(trials, workers)
        advance(len(history.trials) - reported)
        seen(history.trials)
        reported = len(history.trials)
        if propose(history) is not None:
            study.optimize(runner, n_trials=1, catch=(NothingLeftError,))
        elif workers.running(trials):  # also one that has no parameters yet
            waiting.still()
            time.sleep(_POLL)
        else:
            first_recorded(study, end, [trial.number for trial in trials if trial.state == TrialState.COMPLETE])


def _counted(trials: Sequence[FrozenTrial], numbers: Sequence[int]) -> list[FrozenTrial]:
    """Returns the finished trials of these numbers. UsageError: one is gone, or is not finished any more."""
    counted = [trial for trial in trials if trial.number in numbers and trial.state == TrialState.COMPLETE]
    if len(counted) != len(numbers):
        raise damaged(f"one of the trials {', '.join(map(str, numbers))}")
    return counted


def _untried(history: History, space: Space, reason_untried: Callable[[Setting], str]) -> str:
    """Returns how many arms were not tried, by reason."""
    arms = [*chain.from_iterable(space.families)]
    reasons = Counter(reason_untried(arm) for arm in arms if not history.of(arm))
    if not reasons:
        return ""
    why = "; ".join(reasons if len(reasons) == 1 else (f"{count} as {reason}" for reason, count in reasons.items()))
    return (
        f"{reasons.total()} of {len(arms)} ways to decode (rule, score, draft length, …) were not tried: {why} "
        "(docs/calibration.md, What it does)"
    )


def _identity(space: Space, objective: Objective, evaluator: Evaluator) -> dict[str, str]:
    """Returns what must agree for two runs to belong to one search."""
    ids = facts_digest([problem.id for problem in evaluator.problems])[:12]
    return {
        "space": json.dumps(space.values),
        "goal": objective.description,
        "problems": f"{len(evaluator.problems)} of {ids}",
    }
