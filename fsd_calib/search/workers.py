"""Worker processes of a study, and whether they are still alive.

A killed process leaves its trial in the state RUNNING. Where its process can be seen, that is detected at once; else by
heartbeats, which workers write into their trials: a trial whose record did not change while this process looked at it
for two minutes is ignored from then on, though it may still finish.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from optuna.exceptions import OptunaError
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from fsd_calib.storage.processes import Watch, is_alive
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
