"""The tasks by name. A new one is a file that makes a `TaskKind`, and an entry in `_KINDS`."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from fsd_calib.tasks.arithmetic import ARITHMETIC
from fsd_calib.tasks.base import Task, TaskKind
from fsd_calib.tasks.gsm8k import GSM8K
from fsd_decoding.errors import UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_KINDS = {kind.name: kind for kind in (ARITHMETIC, GSM8K)}
TASKS = tuple(_KINDS)


def load_task(
    name: str,
    seed: int = 0,
    limit: int | None = None,
    data: str | PathLike[str] | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> Task:
    """The problems of one task, with the prompts that `tokenizer`'s model should be given.

    `seed` makes the problems of a generated task and chooses which ones of any other `limit` keeps.
    `limit` caps their number (None: all; 3000 of a generated task); where the source names parts, the parts
    share it in proportion to their sizes. `data` is a file of problems, for the tasks that take one.
    `tokenizer` decides the form of the prompts: its chat template, or worked examples without one.
    Raises UsageError for an unknown task, a limit below 1 and problems that cannot be read.
    """
    kind = task_kind(name)
    if limit is not None and limit < 1:
        raise UsageError(f"limit {limit}: it must be at least 1 (leave it out for the default)")
    return kind.load(seed, limit, None if data is None else Path(data), tokenizer)


def task_kind(name: str) -> TaskKind:
    """How a task asks and judges, without its problems. Raises UsageError for an unknown task."""
    if name not in _KINDS:
        raise UsageError(f"unknown task {name!r}: the known tasks are {', '.join(TASKS)}")
    return _KINDS[name]
