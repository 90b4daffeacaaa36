"""An optuna sampler that evaluates the point its objective proposes, and the workers that share a study.

Its state is the study alone, so a search resumes, and several workers can share one study: other workers' running
trials are part of the history. A killed process leaves its trial in the state RUNNING. Where its process can be seen,
that is detected at once; else by heartbeats, which workers write into their trials: a trial whose record did not change
while this process looked at it for two minutes is ignored from then on, though it may still finish.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.exceptions import OptunaError
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from fsd_calib.search.objective import FinishedTrial, History
from fsd_calib.search.space import Point, Space, arm_of, parameters_of
from fsd_calib.search.study_storage import require_intact
from fsd_calib.storage import Watch, is_alive, this_process
from fsd_common.errors import UsageError

KEY = "worker"
_BEATS = "heartbeats"
_INTERVAL = 15.0  # seconds between heartbeats
_UNNAMED = 30.0  # seconds from a trial's start to the write that names its worker
_SILENT = 120.0  # seconds without a change, of a worker that cannot be seen from here
_HUNG = 3600.0  # the same for one that is known to exist


class Workers:
    """The workers of one study's running trials, as one process sees them."""

    def __init__(self) -> None:
        self._watch = Watch()

    def running(self, trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
        """Returns the trials that a live worker may be evaluating."""
        return [t for t in trials if t.state == TrialState.RUNNING and self._may_be_running(t)]

    def _may_be_running(self, trial: FrozenTrial) -> bool:
        named = KEY in trial.user_attrs
        alive = is_alive(trial.user_attrs[KEY]) if named else None
        content = (trial.system_attrs.get(_BEATS), len(trial.user_attrs), len(trial.params))
        unchanged = self._watch.seconds_unchanged(trial.number, content)
        return alive is not False and unchanged < ((_HUNG if alive else _SILENT) if named else _UNNAMED)


def fail_dead_trials(study: Study) -> None:
    """Fails the trials of processes that certainly ended, so that dashboards show them as failed."""
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        if KEY in trial.user_attrs and is_alive(trial.user_attrs[KEY]) is False:
            study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)


@contextmanager
def heartbeats(trial: Trial, interval: float = _INTERVAL) -> Iterator[None]:
    """Counts up an attribute of the trial meanwhile, for processes that cannot see this one."""
    ended = threading.Event()

    def beat() -> None:
        count = 0
        while not ended.wait(interval):
            count += 1
            try:
                trial.storage.set_trial_system_attr(trial._trial_id, _BEATS, count)
            except (OptunaError, SQLAlchemyError, UsageError):  # the trial's own writes report what is wrong
                return

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


Propose = Callable[[History], Point | None]

_SHARE_NAME = "logit_share"  # the last parameter of a trial; the others describe its arm
_PATIENCE = 60.0  # seconds to wait for another worker to write its trial's parameters


class NothingLeftError(Exception):
    """Another worker took the last point that was worth a trial."""


class ProposingSampler(BaseSampler):
    """Samples all parameters jointly: an arm, and a share in it.

    Args:
        propose: Returns the next point of a history; None: nothing is left.
        lowest, highest: The range of logit(u).
        workers: Tells which trials other workers are running.
    """

    def __init__(self, propose: Propose, space: Space, lowest: float, highest: float, workers: Workers) -> None:
        self._propose, self._workers = propose, workers
        self._distributions: dict[str, BaseDistribution] = {
            **{name: CategoricalDistribution(choices) for name, choices in space.choices.items()},
            _SHARE_NAME: FloatDistribution(lowest, highest),
        }

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Names the worker before anything else, so that a trial whose process is killed later is recognised."""
        study._storage.set_trial_user_attr(trial._trial_id, KEY, this_process())

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self._distributions

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        point = self._propose(history_of(self._other_trials(study, trial.number), self._workers))
        if point is None:
            return {}
        parameters = parameters_of(point.arm) | {_SHARE_NAME: point.logit_share}
        return {name: parameters[name] for name in self._distributions}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        raise NothingLeftError

    def _other_trials(self, study: Study, number: int) -> list[FrozenTrial]:
        """Returns all trials but this one, once the trials begun before it have parameters, so that no two workers try
        the same."""
        started = time.monotonic()
        while True:
            trials = [t for t in study.get_trials(deepcopy=False) if t.number != number]
            unsampled = [t for t in trials if t.number < number and not _is_sampled(t)]
            if not self._workers.running(unsampled) or time.monotonic() - started > _PATIENCE:
                return trials
            time.sleep(0.02)


def history_of(trials: Sequence[FrozenTrial], workers: Workers) -> History:
    """Returns the history of a study, without failed trials and without running ones whose worker is gone."""
    finished = [_finished_trial(t) for t in trials if t.state == TrialState.COMPLETE]
    running = [_point(t.params) for t in workers.running(trials) if _is_sampled(t)]
    return History(tuple(finished), tuple(running))


def _is_sampled(trial: FrozenTrial) -> bool:
    return _SHARE_NAME in trial.params


def _point(params: dict[str, Any]) -> Point:
    arm = {name: value for name, value in params.items() if name != _SHARE_NAME}
    return Point(arm_of(arm), params[_SHARE_NAME])


def _finished_trial(trial: FrozenTrial) -> FinishedTrial:
    require_intact(trial)
    point, attributes = _point(trial.params), trial.user_attrs
    assert trial.value is not None
    return FinishedTrial(
        setting=point.arm.at(attributes["threshold"]),
        logit_share=point.logit_share,
        value=trial.value,
        shortfall=max(trial.constraints.values()),
        tokens_per_second=attributes["tokens_per_second"],
        retention=attributes["retention"],
        lost=attributes["lost"],
        gained=attributes["gained"],
        problems=attributes["problems"],
        flipped=attributes["flipped"],
    )
