"""A kind of task made from a description."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fsd_calib.tasks.base import Example, Prompting, Task, TaskKind, pick
from fsd_calib.tasks.grading.choices import LETTERS
from fsd_calib.tasks.kinds.multiple_choice import choice_example
from fsd_calib.tasks.prompts import chat_turns, has_chat_template
from fsd_calib.tasks.sources.examples import examples_of
from fsd_calib.tasks.sources.hub_rows import HubData
from fsd_calib.tasks.sources.rows import Row, read_rows, shown
from fsd_calib.tasks.yaml_task.grading import grader_of
from fsd_calib.tasks.yaml_task.schema import Description, read_description
from fsd_calib.tasks.yaml_task.templates import PromptTemplate
from fsd_decoding.errors import UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


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
        grader = grader_of(self.file, self.description)
        kind = TaskKind(self.name, self._read, self.prompts, self.max_new_tokens, grader)
        return kind.load(seed, limit, data, tokenizer)

    def prompts(self, tokenizer: PreTrainedTokenizerBase | None) -> Prompting:
        """See `Kind.prompts`. Worked examples precede a prompt, and in a chat they are earlier turns."""
        if tokenizer is not None and has_chat_template(tokenizer):
            return self._chat(tokenizer)
        template = PromptTemplate(f"task file {self.file}, key 'prompt'", self.description.prompt)
        shots = "".join(f"{template.render(_variables(shot))} {shot.answer}\n\n" for shot in self._shots)
        return Prompting(lambda example: shots + template.render(_variables(example)), self.description.stop)

    def _chat(self, tokenizer: PreTrainedTokenizerBase) -> Prompting:
        described = self.description
        messages = [(m.role, m.content) for m in described.messages or ()]
        if not messages:
            messages = [("system", described.instruction)] if described.instruction else []
            messages.append(("user", "{{ question }}"))
        where = f"task file {self.file}, key 'messages'"
        templates = [(role, PromptTemplate(where, content)) for role, content in messages]
        begin = [part for part in templates if part[0] == "system"]
        rest = [part for part in templates if part[0] != "system"]

        def turns(example: Example, parts: Sequence[tuple[str, PromptTemplate]]) -> list[tuple[str, str]]:
            return [(role, template.render(_variables(example))) for role, template in parts]

        shots = [turn for shot in self._shots for turn in (*turns(shot, rest), ("assistant", shot.answer))]
        stop = described.stop if "stop" in described.model_fields_set else ()
        return Prompting(lambda e: chat_turns(tokenizer, [*turns(e, begin), *shots, *turns(e, rest)]), stop)

    @property
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
        options = listed.get("text", listed) if isinstance(listed, Mapping) else listed
        if isinstance(options, str) or not isinstance(options, Sequence):
            raise UsageError(f"{row.where}: column {columns.choices!r} is {shown(listed)}; it must be a list of texts")
        made = choice_example(row, question, options, row[columns.answer], stratum)
        return Example(made.question, made.answer, part, made.choices, stratum, dict(row.columns))


def _answer(row: Row, column: str) -> str:
    """A reference; numbers count as texts."""
    value = row[column]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return row.text(column)


def _variables(example: Example) -> dict[str, Any]:
    """What templates can use."""
    own = {"question": example.question, "answer": example.answer, "choices": list(example.choices), "letters": LETTERS}
    return {**example.row, **own}
