"""The tasks a threshold can be calibrated on: their problems, prompts and graders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsd_common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from fsd_calib.tasks.base import Problem, Task, TaskKind
    from fsd_calib.tasks.registry import TASKS, load_task, task_kind

__all__ = [
    "TASKS",
    "Problem",
    "Task",
    "TaskKind",
    "load_task",
    "task_kind",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "Problem": "fsd_calib.tasks.base",
        "TASKS": "fsd_calib.tasks.registry",
        "Task": "fsd_calib.tasks.base",
        "TaskKind": "fsd_calib.tasks.base",
        "load_task": "fsd_calib.tasks.registry",
        "task_kind": "fsd_calib.tasks.registry",
    },
)
