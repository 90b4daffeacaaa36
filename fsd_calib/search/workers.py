"""Worker processes of a study, and whether they are still alive.

A killed process leaves its trial in the state RUNNING. On the same machine that is detected at once, by process id and
start time. On other machines a database records heartbeats, and optuna fails the trial when they stop; a journal has
none, so there a trial is assumed to run for an hour and is ignored afterwards, though it may still finish.
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
_UNNAMED = timedelta(seconds=10)  # longest time from a trial's start to the write that names its worker
_UNHEARD = timedelta(hours=1)  # how long a trial of another machine is assumed to run


def this_worker() -> dict[str, Any]:
    """Returns the host, process id and start time that identify this process."""
    return {"host": socket.gethostname(), "process": os.getpid(), "started": _started(os.getpid())}


def may_be_running(trial: FrozenTrial) -> bool:
    """Whether a live worker may be evaluating a trial in the state RUNNING."""
    if trial.datetime_start is None or _is_dead(trial):
        return False
    named = KEY in trial.user_attrs
    return datetime.now() - trial.datetime_start < (_UNHEARD if named else _UNNAMED)


def fail_dead_trials(study: Study) -> None:
    """Fails the trials of this machine's killed processes, so that dashboards show them as failed."""
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        if _is_dead(trial) or (KEY not in trial.user_attrs and not may_be_running(trial)):
            study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)


def _is_dead(trial: FrozenTrial) -> bool:
    worker = trial.user_attrs.get(KEY)
    if worker is None or worker["host"] != socket.gethostname():
        return False
    return bool(_started(worker["process"]) != worker["started"])


def _started(process: int) -> str | None:
    """Returns the start time of a process; None: it does not exist. Without /proc, all processes have the same one."""
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
