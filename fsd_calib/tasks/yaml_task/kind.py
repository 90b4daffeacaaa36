"""A kind of task made from a description."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property, partial
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fsd_calib.tasks.base import Example, Prompting, Task, TaskKind, pick
from fsd_calib.tasks.grading.choices import LETTERS
from fsd_calib.tasks.kinds.multiple_choice import Options, choice_example
from fsd_calib.tasks.prompts import chat_turns, has_chat_template
from fsd_calib.tasks.sources.examples import examples_of
from fsd_calib.tasks.sources.hub_rows import HubData
from fsd_calib.tasks.sources.rows import Row, read_rows
from fsd_calib.tasks.yaml_task.grading import grader_of, grading_of
from fsd_calib.tasks.yaml_task.schema import Description, read_description
from fsd_calib.tasks.yaml_task.templates import Literal, PromptTemplate
from fsd_decoding.errors import UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Turn = tuple[str, PromptTemplate | Literal]  # the role and the content of a message


@dataclass(frozen=True)
class YamlTask:
    """A task described by a file; implements `Kind`.

    Attributes:
        name: The file's path as it was given.
    """

    name: str

    @property
    def max_new_tokens(self) -> int:
        return self.description.max_new_tokens

    @cached_property
    def file(self) -> Path:
        return Path(self.name)

    @cached_property
    def description(self) -> Description:
        """UsageError: see `read_description`."""
        return read_description(self.file)

    def load(self, seed: int, limit: int | None, data: Path | None, tokenizer: PreTrainedTokenizerBase | None) -> Task:
        """See `Kind.load`; `data` replaces the description's own."""
        grader, grading = grader_of(self.file, self.description), grading_of(self.file, self.description)
        kind = TaskKind(self.name, self._read, self.prompts, self.max_new_tokens, grader, grading)
        return kind.load(seed, limit, data, tokenizer)

    def prompts(self, tokenizer: PreTrainedTokenizerBase | None) -> Prompting:
        """See `Kind.prompts`. Worked examples precede a prompt, and in a chat they are earlier turns; one that asks
        what the problem asks is left out."""
        described = self.description
        if tokenizer is None or not has_chat_template(tokenizer):
            return Prompting(partial(self._plain, self._template("prompt", described.prompt)), described.stop)
        stop = described.stop if "stop" in described.model_fields_set else ()
        return Prompting(partial(self._chat, tokenizer, *self._turns()), stop)

    def _plain(self, template: PromptTemplate, example: Example) -> str:
        shots = self._shots_for(example)
        worked = "".join(f"{template.render(self._variables(shot))} {shot.answer}\n\n" for shot in shots)
        return worked + template.render(self._variables(example))

    def _turns(self) -> tuple[list[Turn], list[Turn]]:
        """The templates of a chat: those of system messages, and those that are repeated for worked examples."""
        described = self.description
        if described.messages is None:
            asked = described.prompt if _prompt_is_for_chats(described) else "{{ question }}"
            begin: list[Turn] = [("system", Literal(described.instruction))] if described.instruction else []
            return begin, [("user", self._template("prompt", asked))]
        turns: list[Turn] = [
            (message.role, self._template("messages", message.content)) for message in described.messages
        ]
        return [turn for turn in turns if turn[0] == "system"], [turn for turn in turns if turn[0] != "system"]

    def _chat(
        self, tokenizer: PreTrainedTokenizerBase, begin: Sequence[Turn], asking: Sequence[Turn], example: Example
    ) -> str:
        messages = self._rendered(begin, example)
        for shot in self._shots_for(example):
            messages += [*self._rendered(asking, shot), ("assistant", shot.answer)]
        return chat_turns(tokenizer, [*messages, *self._rendered(asking, example)])

    def _rendered(self, turns: Sequence[Turn], example: Example) -> list[tuple[str, str]]:
        return [(role, template.render(self._variables(example))) for role, template in turns]

    def _variables(self, example: Example) -> dict[str, Any]:
        """What templates can use; a question of a user's, asked by a profile, has no other columns."""
        question = {self.description.columns.question: example.question, "question": example.question}
        own = {"answer": example.answer, "choices": list(example.choices), "letters": LETTERS}
        return {**example.row, **question, **own}

    def _template(self, key: str, source: str) -> PromptTemplate:
        return PromptTemplate(f"task file {self.file}, key {key!r}", source)

    def _shots_for(self, example: Example) -> list[Example]:
        return [shot for shot in self._shots if shot.question != example.question]

    @cached_property
    def _shots(self) -> list[Example]:
        where = f"task file {self.file}, key 'examples'"
        rows = [Row(f"{where}, example {i}", shot) for i, shot in enumerate(self.description.examples, start=1)]
        return [self._example(row) for row in rows]

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
        runs = f", graded by running {described.function}" if described.grader == "python" else ""
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


def _prompt_is_for_chats(described: Description) -> bool:
    """Whether a prompt was written, and nothing for chats: it is the user's message then."""
    return "prompt" in described.model_fields_set and described.instruction is None
