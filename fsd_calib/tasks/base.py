"""The parts of a task: problems with their prompts, a grader, and the strings that end an answer."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from fsd_calib.tasks.answers import same_answer
from fsd_calib.tasks.prompts import (
    STEP_BY_STEP,
    STOP,
    Exemplar,
    chat_prompts,
    has_chat_template,
    plain_prompt,
)
from fsd_collectors.split import Part, content_key, hashed

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Grader = Callable[[str, str], bool]  # (reference, text) -> whether the text's answer is right


class Example(NamedTuple):
    """A problem as its source gives it, without a prompt.

    Attributes:
        choices: Answers to choose from. They identify the problem together with the question; since prompts show the
            question alone, it must contain them too.
    """

    question: str
    answer: str
    part: Part | None = None
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Problem:
    """A problem of a task, with its prompt for one model."""

    id: int  # hash of question and choices: independent of subset and order, and the seed of its noise
    question: str
    prompt: str
    reference: str  # the whole reference answer, including the working
    part: Part | None  # None: the source has no parts
    choices: tuple[str, ...] = ()

    @property
    def key(self) -> int:
        """The 48-bit content key: independent of spacing and of Unicode composition."""
        return hashed(content_key(self.question, self.choices))


@dataclass(frozen=True)
class Task:
    """Problems with prompts for one model, and what is needed to grade its texts."""

    name: str
    problems: tuple[Problem, ...]
    max_new_tokens: int
    stop: tuple[str, ...]  # strings that end an answer, in addition to the model's end-of-sequence token
    source: str  # description of the source, as recorded in profiles
    grader: Grader

    def grade(self, problem: Problem, text: str) -> bool:
        """Returns whether `text`, a model's whole answer, is right."""
        return self.grader(problem.reference, text)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of all questions, references and choices, in order; prompts are not included."""
        digest = hashlib.sha256()
        for problem in self.problems:
            content = [problem.question, problem.reference, *problem.choices]
            digest.update(json.dumps(content).encode() + b"\n")
        return digest.hexdigest()


@dataclass(frozen=True)
class TaskKind:
    """The definition of one kind of task; each has a module of its own."""

    name: str
    read: Callable[[int, int | None, Path | None], tuple[Sequence[Example], str]]
    """Returns at most `limit` examples and a description of their source, from (seed, limit, data)."""
    exemplars: Callable[[PreTrainedTokenizerBase | None], Sequence[Exemplar]]
    """Returns the worked examples in the prompts of a model without a chat template."""
    max_new_tokens: int
    instruction: str = STEP_BY_STEP
    grader: Grader = same_answer

    def load(self, seed: int, limit: int | None, data: Path | None, tokenizer: PreTrainedTokenizerBase | None) -> Task:
        """Returns the task, with prompts in the form that suits `tokenizer`'s model."""
        examples, source = self.read(seed, limit, data)
        prompt_of, stop = self.prompts(tokenizer)
        problems = tuple(
            Problem(_id(e.question, e.choices), e.question, prompt_of(e.question), e.answer, e.part, e.choices)
            for e in examples
        )
        return Task(self.name, problems, self.max_new_tokens, stop, source, self.grader)

    def prompts(self, tokenizer: PreTrainedTokenizerBase | None) -> tuple[Callable[[str], str], tuple[str, ...]]:
        """Returns a function from a question to its prompt, and the strings that end an answer."""
        if tokenizer is not None and has_chat_template(tokenizer):
            return chat_prompts(tokenizer, self.instruction), ()
        exemplars = self.exemplars(tokenizer)
        return lambda question: plain_prompt(exemplars, question), STOP


def pick(examples: Sequence[Example], seed: int, limit: int | None) -> Sequence[Example]:
    """Returns at most `limit` examples, in their own order, chosen by `seed`.

    A smaller choice is a subset of a larger one. The parts share the limit in proportion to their sizes, and from 2 on
    each of two has at least one.
    """
    parts: defaultdict[Part | None, list[int]] = defaultdict(list)
    for index, example in enumerate(examples):
        parts[example.part].append(index)
    ranked: list[tuple[float, int]] = []  # the n-th choice of a part of size s ranks n / s
    for part, members in parts.items():
        Random(f"fsd-calib/{seed}/{part}").shuffle(members)
        ranked += [(n / len(members), index) for n, index in enumerate(members)]
    return [examples[index] for index in sorted(index for _, index in sorted(ranked)[:limit])]


def _id(question: str, choices: Sequence[str]) -> int:
    return hashed(json.dumps([question, *choices]) if choices else question)
