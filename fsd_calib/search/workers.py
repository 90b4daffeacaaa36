"""Who works on a trial, and whether that process still lives. Knows processes of this machine, and the clock.

A process that is killed leaves its trial running for ever. On its own machine that is known at once, by process id and
start time. On another one a database hears its heartbeat, and Optuna fails the trial when that stops; a journal hears
nothing, so there a trial counts for an hour and is then left out, but may still finish.
"""

from __future__ import annotations

import os
import socket
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

KEY = "worker"
_UNNAMED = timedelta(seconds=10)  # between a trial's start and its worker's name lies one write
_UNHEARD = timedelta(hours=1)


def this_worker() -> dict[str, Any]:
    return {"host": socket.gethostname(), "process": os.getpid(), "started": _started(os.getpid())}


def counts(trial: FrozenTrial) -> bool:
    """Whether someone may be thought to work on a running trial."""
    if trial.datetime_start is None or _is_dead(trial):
        return False
    named = KEY in trial.user_attrs
    return datetime.now() - trial.datetime_start < (_UNHEARD if named else _UNNAMED)


def fail_dead_trials(study: Study) -> None:
    """Those of killed processes of this machine, so that dashboards show it."""
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        if _is_dead(trial) or (KEY not in trial.user_attrs and not counts(trial)):
            study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)


def _is_dead(trial: FrozenTrial) -> bool:
    worker = trial.user_attrs.get(KEY)
    if worker is None or worker["host"] != socket.gethostname():
        return False
    return bool(_started(worker["process"]) != worker["started"])


def _started(process: int) -> str | None:
    """None: there is no such process. Where /proc is missing, all there are began at the same time."""
    try:
        os.kill(process, 0)
        status = Path(f"/proc/{process}/stat").read_text()
    except ProcessLookupError:
        return None
    except PermissionError:
        return "unknown"
    except OSError:
        return "unknown" if not Path("/proc/self/stat").exists() else None
    state, *rest = status.rpartition(")")[2].split()
    return None if state == "Z" else rest[18]
