"""The problems of a task that can be asked and answered at all; the others are reported by id."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from fsd_calib.tasks.base import Problem, Task
from fsd_common.errors import UsageError
from fsd_decoding.memory import ModelSize, UnknownSizeError
from fsd_decoding.model_options import ModelOptions
from fsd_decoding.text import prompt_tokens

_SHOWN = 5  # ids in a line
_ADDED = 8  # tokens that a tokenizer may add to those of a text, such as its start


def context_of(models: Sequence[tuple[Any, ModelOptions]], dtype: str | None) -> int | None:
    """Returns the most tokens of a prompt and its text together that all models take; None: no limit is known."""
    found = []
    for model, options in models:
        try:
            found.append(ModelSize.of(model, dtype, options).context)
        except UnknownSizeError:
            continue
    return min((context for context in found if context is not None), default=None)


def usable(task: Task, tokenizer: Any, context: int | None, note: Callable[[str], None]) -> Task:
    """Returns a task without the problems whose prompts are as long as the models' context, or longer.

    They are left out of both sides of every comparison, since no model can answer them. Problems whose texts the
    context may cut short stay and get their `room`. Those whose reference is wrong by the task's own grader stay too:
    both sides fail on them.

    Args:
        context: See `context_of`.
        note: Receives a line where there are such problems.

    Raises:
        UsageError: All prompts are too long.
    """
    long = [] if context is None else [p for p in task.problems if _fills(p.prompt, tokenizer, context)]
    if long:
        note(
            f"{len(long)} of {len(task.problems)} prompts fill the models' context of {context} tokens and are left "
            f"out (ids {_ids(long)})"
        )
        left = set(map(id, long))
        task = replace(task, problems=tuple(p for p in task.problems if id(p) not in left))
        if not task.problems:
            raise UsageError(
                f"all prompts of task {task.name} fill the models' context of {context} tokens; shorten them"
            )
    rooms = {} if context is None else _rooms(task, tokenizer, context)
    if rooms:
        near = [p for p in task.problems if p.id in rooms]
        task = replace(task, problems=tuple(replace(p, room=rooms.get(p.id)) for p in task.problems))
        note(
            f"{len(near)} of {len(task.problems)} prompts leave less than {task.max_new_tokens} tokens of the models' "
            f"context of {context}, which may cut their texts short (ids {_ids(near)})"
        )
    wrong = [p for p in task.problems if task.keys_are_texts and not task.grader(p, p.reference)]
    if wrong:
        note(
            f"{len(wrong)} of {len(task.problems)} references are wrong by the task's own grader, so, if they are "
            f"answers, no text is right there (ids {_ids(wrong)}); fsd-tasks check names them"
        )
    return task


def _rooms(task: Task, tokenizer: Any, context: int) -> dict[int, int]:
    """Returns the tokens left for an answer, by id, where they are fewer than the task allows."""
    near = [p for p in task.problems if _fills(p.prompt, tokenizer, context - task.max_new_tokens + 1)]
    return {p.id: context - len(prompt_tokens(tokenizer, p.prompt)) for p in near}


def _fills(prompt: str, tokenizer: Any, context: int) -> bool:
    if len(prompt.encode()) + _ADDED < context:  # a token has at least a byte
        return False
    return len(prompt_tokens(tokenizer, prompt)) >= context


def _ids(problems: Sequence[Problem]) -> str:
    more = f" and {len(problems) - _SHOWN} others" if len(problems) > _SHOWN else ""
    return ", ".join(str(problem.id) for problem in problems[:_SHOWN]) + more
