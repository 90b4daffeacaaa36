"""Problems to train on, to tune on and to test on: no question is in two of these sets.

Knows seeds and questions. Knows nothing of models.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from fsd_calib.tasks.base import Task
from fsd_calib.tasks.registry import load_task

_TRAINING, _TUNING, _TEST = 71_001, 71_002, 71_004  # seeds


@dataclass(frozen=True)
class Sets:
    training: Task
    tuning: Task
    test: Task

    def check(self) -> None:
        """AssertionError: a question is in two sets."""
        for one, other in combinations((self.training, self.tuning, self.test), 2):
            assert not _questions(one) & _questions(other), "a question is in two sets"


def sets(training: int, tuning: int, test: int, tokenizer: Any, test_seed: int = _TEST) -> Sets:
    """About so many problems each. What the generator says twice stays where it is tested, then where it is tuned.

    All are of the part that may be searched on: nothing is certified here, and a predictor trains on no other.
    """
    sizes = ((test_seed, test), (_TUNING, tuning), (_TRAINING, training))
    seen: set[str] = set()
    found: list[Task] = []
    for seed, size in sizes:
        task = load_task("arithmetic", seed=seed, limit=size, tokenizer=tokenizer)
        new = {p.question: replace(p, part="tuning") for p in task.problems if p.question not in seen}
        found.append(replace(task, problems=tuple(new.values())))
        seen |= new.keys()
    divided = Sets(*reversed(found))
    divided.check()
    return divided


def _questions(task: Task) -> set[str]:
    return {problem.question for problem in task.problems}
