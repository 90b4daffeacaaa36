"""A task for the tiny models, whose questions are random words of their vocabulary."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from fsd_collectors.split import Part
from support.models.tiny_models import VOCABULARY


@dataclass(frozen=True)
class TinyProblem:
    id: int
    question: str
    part: Part | None = None
    group: int | None = None

    @property
    def prompt(self) -> str:
        return self.question


@dataclass(frozen=True)
class TinyTask:
    """A task in which a text is right if it has an even number of words."""

    problems: tuple[TinyProblem, ...]
    max_new_tokens: int = 12
    stop: tuple[str, ...] = ()
    name: str = "tiny"
    source: str = "tests"
    by_agreement: bool = False

    @property
    def fingerprint(self) -> str:
        return repr([problem.question for problem in self.problems])

    def grade(self, problem: TinyProblem, text: str) -> bool:
        return len(text.split()) % 2 == 0


def tiny_task(count: int, max_new_tokens: int = 12, stop: tuple[str, ...] = ()) -> TinyTask:
    """Returns a task with questions of 1 to 12 words."""
    rng = Random(0)
    words = [" ".join(f"w{rng.randrange(20, VOCABULARY)}" for _ in range(rng.randint(1, 12))) for _ in range(count)]
    problems = tuple(TinyProblem(1000 + i, question) for i, question in enumerate(words))
    return TinyTask(problems, max_new_tokens, stop)
