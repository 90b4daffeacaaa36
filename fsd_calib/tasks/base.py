"""A task: problems with their prompts, a grader, and the strings that end an answer; and the kinds that make tasks."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Protocol

from fsd_calib.tasks.asking import Asking
from fsd_collectors.split import CERTIFICATION_SHARE, Part, content_key, hashed, row_hash, value_text
from fsd_common.argument_checks import named
from fsd_common.errors import UsageError

if TYPE_CHECKING:
    from fsd_decoding.profile.prompt_form import PromptForm, PromptInfo
    from fsd_decoding.profile.rendering import PromptRenderer


@dataclass(frozen=True)
class Example:
    """A problem as its source gives it, without a prompt.

    Attributes:
        choices: Answers to choose from. They identify the problem together with the question; since prompts show the
            question alone, it must contain them too.
        stratum: What a limited choice of problems is balanced over, such as a subject.
        row: Columns of the source that the prompt or the grader needs besides.
        source: All columns of the source's row; None: it is no row of a source.
    """

    question: str
    answer: str
    part: Part | None = None
    choices: tuple[str, ...] = ()
    stratum: str = ""
    row: Mapping[str, object] = field(default_factory=dict, hash=False)
    source: Mapping[str, object] | None = field(default=None, hash=False, compare=False)


@dataclass(frozen=True)
class Problem:
    """A problem of a task, with its prompt for one model."""

    id: int  # hash of question and choices: independent of subset and order, and the seed of its noise
    question: str
    prompt: str
    reference: str  # the whole reference answer, including the working
    part: Part | None  # None: the source has no parts
    choices: tuple[str, ...] = ()
    row: Mapping[str, object] = field(default_factory=dict, hash=False)  # see `Example`
    source: Mapping[str, object] | None = field(default=None, hash=False, compare=False)  # see `Example`
    group: int | None = None  # hash of what it shares with problems that are not independent of it; None: nothing
    room: int | None = None  # tokens that the models' context leaves for an answer, where fewer than the task allows

    @property
    def key(self) -> int:
        """The 48-bit content key: independent of spacing and of Unicode composition."""
        return hashed(content_key(self.question, self.choices))

    @property
    def row_key(self) -> int:
        """The 48-bit key of the row that its source gave: the same under another prompt, grader or task."""
        return self.key if self.source is None else row_hash(self.source)

    @property
    def keys(self) -> frozenset[int]:
        """All numbers that it is known by: whatever was trained on one of them was trained on it."""
        return frozenset((self.id, self.key, self.row_key))

    @property
    def answer_key(self) -> int:
        """The 48-bit hash of the reference answer."""
        return hashed(self.reference)


Grader = Callable[[Problem, str], bool]  # (problem, a model's whole answer) -> whether it is right


@dataclass(frozen=True)
class Task:
    """Problems with prompts for one model, and what is needed to grade its texts."""

    name: str
    problems: tuple[Problem, ...]
    max_new_tokens: int
    stop: tuple[str, ...]  # strings that end an answer, in addition to the model's end-of-sequence token
    source: str  # description of the source, as recorded in profiles
    grader: Grader
    by_agreement: bool = False  # there are no keys: right is what agrees with the target's own text
    keys_are_texts: bool = True  # a reference is an answer itself; else a key such as "B", which may be no right text
    grading: str = ""  # what else tells graders apart on the same problems: settings, files, versions
    prompt: PromptInfo | None = None  # how the prompts were made; None: that is not known, so no profile says it
    answer_after: str | None = None  # see `PromptInfo`
    runs: str = ""  # a user's function that grades
    asks: str = ""  # what it asks and grades, however its file is called and its data change; "": its name says it
    phase: tuple[str | int, str | int] | None = None  # the markers, texts or tokens, between which it is worked out

    @property
    def claim(self) -> str:
        """What certificates of it claim to hold of: tasks of one claim share a budget of errors."""
        return self.asks or self.name

    def grouped_by(self, column: str) -> Task:
        """Returns the task with problems whose source has the same in a column as one group.

        A problem with nothing there, be it null, NaN, an empty text or no such column, is in no group.

        Raises:
            UsageError: All problems are in none.
        """
        values = [value_text((problem.source or {}).get(column)) for problem in self.problems]
        if self.problems and not any(values):
            columns = sorted({str(each) for problem in self.problems for each in problem.source or {}})
            raise UsageError(
                f"{named('group')} is {column!r:.60}, and no problem has anything in a column of that name; their "
                f"columns are {', '.join(columns) or 'none':.400}: give one of them, or leave it out"
            )
        grouped = zip(self.problems, values, strict=True)
        groups = (replace(p, group=hashed(json.dumps([column, value])) if value else None) for p, value in grouped)
        return replace(self, problems=tuple(groups))

    def grade(self, problem: Problem, text: str, target_text: str | None = None) -> bool:
        """Returns whether `text`, a model's whole text, is right.

        Args:
            target_text: The target's own text, with which a task by agreement compares; None: `text` is the target's.
        """
        answer = self._answer(text)
        if answer is None or not self.by_agreement:
            return answer is not None and self.grader(problem, answer)
        wanted = answer if target_text is None else self._answer(target_text)
        return wanted is not None and self.grader(replace(problem, reference=wanted), answer)

    def agree(self, problem: Problem, one: str, other: str) -> bool:
        """Returns whether two texts of a problem have one answer, by a grader that compares answers."""
        wanted, given = self._answer(one), self._answer(other)
        return wanted is not None and given is not None and self.grader(replace(problem, reference=wanted), given)

    def _answer(self, text: str) -> str | None:
        """The part of a text that is graded; None: the text ended before it."""
        if self.answer_after is None:
            return text
        _, found, answer = text.rpartition(self.answer_after)
        return answer if found else None

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of all questions, references, choices and rows, in order, and of the grading; prompts are not
        included."""
        digest = hashlib.sha256()
        for problem in self.problems:
            content: list[object] = [problem.question, problem.reference, *problem.choices]
            content += [dict(problem.row)] if problem.row else []
            digest.update(json.dumps(content, sort_keys=True, default=str).encode() + b"\n")
        digest.update(self.graded.encode())
        return digest.hexdigest()

    @property
    def graded(self) -> str:
        """What tells apart how the same problems are graded."""
        return self.grading + ("" if self.answer_after is None else f" of what follows {self.answer_after!r}")


class Kind(Protocol):
    """What makes tasks of one kind."""

    @property
    def name(self) -> str:
        """What --task calls it, and profiles record."""
        ...

    def load(self, seed: int, limit: int | None, data: Path | None, asking: Asking) -> Task:
        """Returns the task with prompts for a model; see `load_task`."""
        ...

    def prompts(self, asking: Asking) -> PromptInfo:
        """Returns how it asks a model."""
        ...


Read = Callable[[int, int | None, Path | None], tuple[Sequence[Example], str]]
"""Returns at most `limit` examples and a description of their source, from (seed, limit, data); needs no model."""


@dataclass(frozen=True)
class TaskKind:
    """A kind of task in four parts; implements `Kind`.

    Attributes:
        form: Returns the form of prompts for a model, and the strings that end its answers, such as `WorkedExamples`.
        grading, asks, phase: See `Task`.
    """

    name: str
    read: Read
    form: Callable[[Asking], tuple[PromptForm, Sequence[str]]]
    max_new_tokens: int
    grader: Grader
    grading: str = ""
    asks: str = ""
    phase: tuple[str, str] | None = None

    def prompts(self, asking: Asking) -> PromptInfo:
        """See `Kind.prompts`."""
        form, stop = self.form(asking)
        return asking.info(form, stop, self.max_new_tokens)

    def load(self, seed: int, limit: int | None, data: Path | None, asking: Asking) -> Task:
        """See `Kind.load`."""
        examples, source = self.read(seed, limit, data)
        info = self.prompts(asking)
        renderer = asking.renderer(info, f"prompts of task {self.name}")
        problems = tuple(problem_of(example, prompt_of(renderer, example)) for example in examples)
        facts = {"grading": self.grading, "asks": self.asks, "phase": self.phase}
        return task_of(self.name, problems, info, source, self.grader, **facts)


def task_of(
    name: str, problems: Sequence[Problem], info: PromptInfo, source: str, grader: Grader, **facts: Any
) -> Task:
    """Returns the task whose prompts were made as `info` says; `facts` are the other fields of `Task`."""
    return Task(
        name, tuple(problems), info.max_new_tokens, info.stop, source, grader, prompt=info,
        answer_after=info.answer_after, **facts,
    )  # fmt: skip


def prompt_of(renderer: PromptRenderer, example: Example) -> str:
    """Returns the prompt of an example; templates can use its columns, its answer and its choices."""
    columns = {**example.row, "answer": example.answer, "choices": list(example.choices)}
    return renderer.prompt(example.question, columns)


def problem_of(example: Example, prompt: str) -> Problem:
    """Returns the problem of an example, asked by a prompt."""
    identity = json.dumps([example.question, *example.choices]) if example.choices else example.question
    return Problem(
        hashed(identity),
        example.question,
        prompt,
        example.answer,
        example.part,
        example.choices,
        example.row,
        example.source,
    )


def pick(examples: Sequence[Example], seed: int, limit: int | None) -> Sequence[Example]:
    """Returns at most `limit` examples, in their own order, chosen by `seed`.

    A smaller choice is a subset of a larger one. Of the limit the certification part has `CERTIFICATION_SHARE`, as far
    as it has so many problems, and the strata of a part share in proportion to their sizes. From 2 on each of two parts
    has at least one.
    """
    strata: defaultdict[tuple[Part | None, str], list[int]] = defaultdict(list)
    for index, example in enumerate(examples):
        strata[example.part, example.stratum].append(index)
    sizes, shares = Counter(example.part for example in examples), {"tuning": 1 - CERTIFICATION_SHARE}
    ranked: list[tuple[float, int]] = []  # a choice of n has all that rank below some number
    for (part, stratum), members in strata.items():
        Random(f"fsd-calib/{seed}/{part}" + (f"/{stratum}" if stratum else "")).shuffle(members)
        each = sizes[part] / len(members) / shares.get(part or "", CERTIFICATION_SHARE)
        ranked += [(n * each, index) for n, index in enumerate(members)]
    return [examples[index] for index in sorted(index for _, index in sorted(ranked)[:limit])]
