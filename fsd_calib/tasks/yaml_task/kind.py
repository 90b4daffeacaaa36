"""A kind of task made from a description."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Any

from fsd_calib.tasks.asking import Asking
from fsd_calib.tasks.base import Example, Task, pick, problem_of, prompt_of, task_of
from fsd_calib.tasks.kinds.multiple_choice import Options, choice_example
from fsd_calib.tasks.sources.examples import examples_of
from fsd_calib.tasks.sources.hub_rows import HubData
from fsd_calib.tasks.sources.rows import Row, read_rows
from fsd_calib.tasks.yaml_task.grading import grader_of, grading_of
from fsd_calib.tasks.yaml_task.schema import Description, read_description, read_description_file
from fsd_calib.tasks.yaml_task.trial import check_renders
from fsd_common.errors import UsageError
from fsd_decoding.profile.parts import QUESTION, Message, PromptForm, PromptInfo, WorkedExample, literal


@dataclass(frozen=True)
class YamlTask:
    """A task described by a file; implements `Kind`.

    Attributes:
        name: The file's path as it was given.
        recorded: What the file said when a profile was made; None: it is read.
    """

    name: str
    recorded: str | None = None

    @cached_property
    def file(self) -> Path:
        return Path(self.name)

    @cached_property
    def description(self) -> Description:
        """UsageError: see `read_description`."""
        return read_description(self.file, self.content)

    @cached_property
    def content(self) -> str:
        """What the file says. UsageError: it cannot be read."""
        return read_description_file(self.file) if self.recorded is None else self.recorded

    def load(self, seed: int, limit: int | None, data: Path | None, asking: Asking) -> Task:
        """See `Kind.load`; `data` replaces the description's own."""
        grader, grading = grader_of(self.file, self.description), grading_of(self.file, self.description)
        examples, source = self._read(seed, limit, data)
        info = self.prompts(asking)
        where = f"task file {self.file}"
        assert info.form is not None
        check_renders(info.form, examples[0], where)
        renderer = asking.renderer(info, where)
        problems = [problem_of(example, prompt_of(renderer, example)) for example in examples]
        return task_of(self.name, problems, info, source, grader, grading=grading, runs=self.description.function or "")

    def prompts(self, asking: Asking) -> PromptInfo:
        """See `Kind.prompts`. Worked examples precede a prompt, and in a chat they are earlier turns; one that asks
        what the problem asks is left out."""
        described = self.description
        stop = () if asking.chats and "stop" not in described.model_fields_set else described.stop
        form = {"question": described.columns.question, "examples": self._shots}
        form |= {"messages": self._messages} if asking.chats else {"text": described.prompt}
        return asking.info(
            PromptForm.model_validate(form), stop, described.max_new_tokens, self.content, described.answer_after
        )

    @property
    def _messages(self) -> tuple[Message, ...]:
        described = self.description
        if described.messages is not None:
            return described.messages
        asked = described.prompt if _prompt_is_for_chats(described) else QUESTION
        said = [Message(role="system", content=literal(described.instruction))] if described.instruction else []
        return (*said, Message(role="user", content=asked))

    @cached_property
    def _shots(self) -> tuple[WorkedExample, ...]:
        where = f"task file {self.file}, key 'examples'"
        rows = [Row(f"{where}, example {i}", shot) for i, shot in enumerate(self.description.examples, start=1)]
        return tuple(map(_worked, map(self._example, rows)))

    def _read(self, seed: int, limit: int | None, data: Path | None) -> tuple[Sequence[Example], str]:
        described = self.description
        where = data or (None if described.data is None else self.file.parent / described.data)
        if where is not None:
            found, source = examples_of(read_rows(where), self._example), str(where)
        elif described.hub is not None:
            hub = self._hub
            found, source = [self._example(row, part) for row, part in hub.rows(self.name)], str(hub)
        else:
            raise UsageError(f"task file {self.file}: it names no problems; give it data or hub, or give --data")
        runs = f", graded by running {described.function}" if described.function else ""
        return pick(found, seed, limit), source + runs

    @property
    def _hub(self) -> HubData:
        assert self.description.hub is not None
        hub = self.description.hub
        parts = {split: None if use == "problems" else use for split, use in hub.splits.items()}
        return HubData(hub.id, parts, hub.configuration)

    def _example(self, row: Row, part: Any = None) -> Example:
        columns = self.description.columns
        stratum = str(row[columns.subject]) if columns.subject else ""
        if self.description.grader == "python-tests":  # white space is part of a program
            return Example(row.raw(columns.question), row.raw(columns.answer), part, (), stratum, dict(row.columns))
        question, listed = row.text(columns.question), None if columns.choices is None else row[columns.choices]
        if listed is None:
            return Example(question, _answer(row, columns.answer), part, (), stratum, dict(row.columns))
        made = choice_example(row, question, Options.of(row, listed), row[columns.answer], stratum)
        return Example(made.question, made.answer, part, made.choices, stratum, dict(row.columns))


def _answer(row: Row, column: str) -> str:
    """A reference; numbers count as texts, in plain digits."""
    value = row[column]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return row.text(column)
    if not isfinite(value):
        raise UsageError(f"{row.where}: column {column!r} is {value}; it must be a finite number, or a text")
    return f"{Decimal(repr(value)):f}"


def _worked(shot: Example) -> WorkedExample:
    """Columns are kept as JSON has them, in which a date is a text."""
    columns = json.loads(json.dumps({**shot.row, "choices": shot.choices}, default=str))
    return WorkedExample(question=shot.question, answer=shot.answer, columns=columns)


def _prompt_is_for_chats(described: Description) -> bool:
    """Whether a prompt was written, and nothing for chats: it is the user's message then."""
    return "prompt" in described.model_fields_set and described.instruction is None
