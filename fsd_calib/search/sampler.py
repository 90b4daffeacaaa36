"""Optuna's sampler for a goal: it reads the study's history and asks the goal where to go.

Knows parameters and the states of trials. Everything it knows is in the study, so it resumes, and several workers
share one study: trials of others that run still are part of the history.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from fsd_calib.measuring.configuration import Configuration
from fsd_calib.search.history import History, Tried
from fsd_calib.search.space import Point, Space
from fsd_calib.search.workers import KEY, counts, this_worker

Propose = Callable[[History], Point | None]

_SHARE = "logit_share"  # a trial's last parameter; the others are its arm's
_PATIENCE = 10.0  # seconds that a worker gets to say what it tries, between two writes of its own


class NothingLeftError(Exception):
    """Another worker has just taken what was left to try."""


class ProposingSampler(BaseSampler):
    """All parameters at once: an arm, and a share in it."""

    def __init__(self, propose: Propose, space: Space, lowest: float, highest: float) -> None:
        self._propose = propose
        self._distributions: dict[str, BaseDistribution] = {
            **{name: CategoricalDistribution(choices) for name, choices in space.choices.items()},
            _SHARE: FloatDistribution(lowest, highest),
        }

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Before anything else, so that a process killed after this is known to be dead."""
        study._storage.set_trial_user_attr(trial._trial_id, KEY, this_worker())

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self._distributions

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        point = self._propose(history_of(_others(study, trial.number)))
        if point is None:
            return {}
        chosen = vars(point.arm) | {_SHARE: point.logit_share}
        return {name: chosen[name] for name in self._distributions}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        raise NothingLeftError


def history_of(trials: Sequence[FrozenTrial]) -> History:
    """Failed trials are no part of it, nor those that nobody works on any more."""
    finished = [_tried(t) for t in trials if t.state == TrialState.COMPLETE]
    running = [_point(t.params) for t in trials if _is_chosen(t) and counts(t)]
    return History(tuple(finished), tuple(running))


def _others(study: Study, number: int) -> list[FrozenTrial]:
    """All trials but this one, once those that began before it have said what they try: so no two try the same."""
    waited = time.monotonic()
    while True:
        trials = [t for t in study.get_trials(deepcopy=False) if t.number != number]
        silent = [t for t in trials if t.number < number and t.state == TrialState.RUNNING and not _is_chosen(t)]
        if not any(map(counts, silent)) or time.monotonic() - waited > _PATIENCE:
            return trials
        time.sleep(0.02)


def _is_chosen(trial: FrozenTrial) -> bool:
    return trial.state == TrialState.RUNNING and _SHARE in trial.params


def _point(params: dict[str, Any]) -> Point:
    arm = {name: value for name, value in params.items() if name != _SHARE}
    return Point(Configuration(**arm), params[_SHARE])


def _tried(trial: FrozenTrial) -> Tried:
    point, seen = _point(trial.params), trial.user_attrs
    assert trial.value is not None
    return Tried(
        configuration=point.arm.at(seen["threshold"]),
        logit_share=point.logit_share,
        value=trial.value,
        shortfall=max(trial.constraints.values()),
        tokens_per_second=seen["tokens_per_second"],
        retention=seen["retention"],
        lost=seen["lost"],
        gained=seen["gained"],
        problems=seen["problems"],
        flipped=seen["flipped"],
    )
