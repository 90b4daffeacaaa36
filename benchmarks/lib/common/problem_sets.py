"""Disjoint sets of problems for training, tuning and testing."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from fsd_calib.tasks.base import Task
from fsd_calib.tasks.registry import load_task

_TRAINING, _TUNING, _TEST = 71_001, 71_002, 71_004  # seeds


@dataclass(frozen=True)
class ProblemSets:
    """Three tasks that have no question in common."""

    training: Task
    tuning: Task
    test: Task

    def check(self) -> None:
        """Raises `AssertionError` if a question is in two sets."""
        for one, other in combinations((self.training, self.tuning, self.test), 2):
            assert not _questions(one) & _questions(other), "a question is in two sets"


def problem_sets(
    training: int, tuning: int, test: int, tokenizer: Any, test_seed: int = _TEST, besides: Collection[str] = ()
) -> ProblemSets:
    """Generates sets of about these sizes.

    A question that is generated twice stays in the test set, or else in the tuning set. All problems are marked as
    tuning problems: nothing is certified here, and a predictor trains on no others.

    Args:
        besides: questions that are in no set.
    """
    sizes = ((test_seed, test), (_TUNING, tuning), (_TRAINING, training))
    seen: set[str] = set(besides)
    tasks: list[Task] = []
    for seed, size in sizes:
        task = load_task("arithmetic", seed=seed, limit=size, tokenizer=tokenizer)
        new = {p.question: replace(p, part="tuning") for p in task.problems if p.question not in seen}
        tasks.append(replace(task, problems=tuple(new.values())))
        seen |= new.keys()
    sets = ProblemSets(*reversed(tasks))
    sets.check()
    return sets


def _questions(task: Task) -> set[str]:
    return {problem.question for problem in task.problems}
