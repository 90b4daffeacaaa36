"""What a task is: problems with their prompts, a grader, and when a model's answer ends.

Knows how the parts of a task come together. Knows no particular task, and no model.
"""

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

    choices: answers to choose from, a part of what is asked; prompts show the question alone, so it says them too.
    """

    question: str
    answer: str
    part: Part | None = None
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Problem:
    id: int  # of question and choices alone: the same in any subset and order, and the key of its noise
    question: str
    prompt: str
    reference: str  # the whole reference answer, working included
    part: Part | None  # None: the source names no parts
    choices: tuple[str, ...] = ()

    @property
    def key(self) -> int:
        """48 bits of the content key: the same however the texts are spaced and composed."""
        return hashed(content_key(self.question, self.choices))


@dataclass(frozen=True)
class Task:
    """Problems ready to be given to one model, and what is needed to judge its texts."""

    name: str
    problems: tuple[Problem, ...]
    max_new_tokens: int
    stop: tuple[str, ...]  # strings that end an answer, beside the model's own end of text
    source: str  # where the problems came from, as a profile records it
    grader: Grader

    def grade(self, problem: Problem, text: str) -> bool:
        """Whether `text`, a model's whole answer, is right."""
        return self.grader(problem.reference, text)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of all questions, references and choices, in order. Prompts are not part of it."""
        digest = hashlib.sha256()
        for problem in self.problems:
            told = [problem.question, problem.reference, *problem.choices]
            digest.update(json.dumps(told).encode() + b"\n")
        return digest.hexdigest()


@dataclass(frozen=True)
class TaskKind:
    """One kind of task: what is its own, in one small file each."""

    name: str
    read: Callable[[int, int | None, Path | None], tuple[Sequence[Example], str]]
    """(seed, limit, data) -> at most `limit` examples, and their source in words."""
    exemplars: Callable[[PreTrainedTokenizerBase | None], Sequence[Exemplar]]
    """What a model without a chat template is shown first."""
    max_new_tokens: int
    instruction: str = STEP_BY_STEP
    grader: Grader = same_answer

    def load(self, seed: int, limit: int | None, data: Path | None, tokenizer: PreTrainedTokenizerBase | None) -> Task:
        """The task with its prompts in the form that suits `tokenizer`'s model."""
        examples, source = self.read(seed, limit, data)
        prompt_of, stop = self.prompts(tokenizer)
        problems = tuple(
            Problem(_id(e.question, e.choices), e.question, prompt_of(e.question), e.answer, e.part, e.choices)
            for e in examples
        )
        return Task(self.name, problems, self.max_new_tokens, stop, source, self.grader)

    def prompts(self, tokenizer: PreTrainedTokenizerBase | None) -> tuple[Callable[[str], str], tuple[str, ...]]:
        """How `tokenizer`'s model is asked a question, and the strings that end its answer."""
        if tokenizer is not None and has_chat_template(tokenizer):
            return chat_prompts(tokenizer, self.instruction), ()
        exemplars = self.exemplars(tokenizer)
        return lambda question: plain_prompt(exemplars, question), STOP


def pick(examples: Sequence[Example], seed: int, limit: int | None) -> Sequence[Example]:
    """At most `limit` examples, in their own order, chosen by `seed`; a smaller choice lies within a larger.

    The parts share the limit in proportion to their sizes, and from 2 on each of two has one at least.
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
