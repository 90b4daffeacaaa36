"""Problems that a calibration has not seen."""

from __future__ import annotations

from collections.abc import Sequence

from fsd_calib import ThresholdProfile, load_task
from fsd_calib.tasks.base import Problem, Task

_SPARE = 400  # problems generated beyond those needed, since some were in the calibration


class Fresh:
    """Problems that no calibration of a profile has seen, and none twice."""

    def __init__(self, profile: ThresholdProfile) -> None:
        self._seen = {problem.id for problem in load_task(profile.task, profile.seed).problems}

    def task(self, seed: int, count: int) -> tuple[Task, Sequence[Problem]]:
        task = load_task("arithmetic", seed=seed, limit=count + _SPARE)
        new = {p.id: p for p in task.problems if p.id not in self._seen}
        problems = list(new.values())[:count]
        self._seen |= {problem.id for problem in problems}
        return task, problems
