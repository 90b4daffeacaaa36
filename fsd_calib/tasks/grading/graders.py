"""Graders: functions that say whether a model's whole answer to a problem is right."""

from __future__ import annotations

from fsd_calib.tasks.base import Problem
from fsd_calib.tasks.grading.numbers import same_answer


def same_number(problem: Problem, text: str) -> bool:
    """Whether a text ends in the number that the reference ends in; see `final_number`."""
    return same_answer(problem.reference, text)
