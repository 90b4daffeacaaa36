"""The registry of tasks by name. A new task is a module with a `TaskKind`, and an entry in `_KINDS`."""

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
    """Returns the problems of one task, with prompts for `tokenizer`'s model.

    Args:
        seed: Generates the problems of a generated task; of other tasks it chooses which problems `limit` keeps.
        limit: Largest number of problems (None: all; 3000 of a generated task). Where the source has parts, they share
            it in proportion to their sizes.
        data: A file of problems, for the tasks that take one.
        tokenizer: Determines the form of the prompts: its chat template, or worked examples where it has none.

    Raises:
        UsageError: The task is unknown, the limit is below 1, or the problems cannot be read.
    """
    kind = task_kind(name)
    if limit is not None and limit < 1:
        raise UsageError(f"limit {limit}: it must be at least 1 (leave it out for the default)")
    return kind.load(seed, limit, None if data is None else Path(data), tokenizer)


def task_kind(name: str) -> TaskKind:
    """Returns how a task prompts and grades, without its problems.

    Raises:
        UsageError: The task is unknown.
    """
    if name not in _KINDS:
        raise UsageError(f"unknown task {name!r}: the known tasks are {', '.join(TASKS)}")
    return _KINDS[name]
