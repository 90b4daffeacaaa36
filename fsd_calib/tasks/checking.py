"""Whether a task grades as it should: its own references as right, and altered ones as wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fsd_calib.tasks.base import Problem, Task
from fsd_calib.tasks.grading.phrases import last_box
from fsd_decoding.profile.prompt_form import LETTERS

_NUMBER = re.compile(r"\d{1,18}(?!\d)")  # or the end of one; Python reads no integers of more than 4300 digits
_RETURN = re.compile(r"\breturn\b[ \t]*([^\n]*)")


def faults(task: Task) -> Iterator[tuple[bool, str]]:
    """Yields the wrong grades of a task, of each reference, its altered form, and an empty text.

    Each is whether it should be right, with what is wrong in words.
    """
    for problem in task.problems:
        for text, wanted in ((problem.reference, True), (altered(problem), False), ("", False)):
            if task.grader(problem, text) != wanted:
                what = "the reference is graded wrong" if wanted else "an altered reference is graded right"
                yield wanted, f"problem {problem.id} ({problem.question[:50]!r}): {what}: {text[-60:]!r}"


def altered(problem: Problem) -> str:
    """Returns a text that is wrong, and as near to the reference as can be."""
    reference, choices = problem.reference, problem.choices
    if choices:
        given = re.findall(r"\b([A-J])\b", reference)
        return f"The answer is ({next(letter for letter in LETTERS[: len(choices)] if letter not in given[-1:])})."
    if "test" in problem.row and "entry_point" in problem.row:
        return _RETURN.sub(r"return [\1, None]", reference) if _RETURN.search(reference) else "    return None\n"
    if (boxed := last_box(reference)) is not None:
        return f"\\boxed{{{boxed} + 1}}"
    if numbers := list(_NUMBER.finditer(reference)):
        number = numbers[-1]
        return f"{reference[: number.start()]}{int(number[0]) + 1}{reference[number.end() :]}"
    return f"not {reference[::-1]}"
