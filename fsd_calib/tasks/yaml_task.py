"""Tasks that a file in YAML describes: data, prompt, examples, extraction and grading, without code."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Literal

from jinja2 import Environment, TemplateSyntaxError, nodes
from pydantic import Field, field_validator, model_validator

from fsd_calib.tasks.asking import Asking
from fsd_calib.tasks.base import Example, Grader, Problem, Task, pick, problem_of, prompt_of, task_of
from fsd_calib.tasks.grading import graders
from fsd_calib.tasks.grading.apart import Apart, renew
from fsd_calib.tasks.grading.graders import same_expression
from fsd_calib.tasks.grading.python_tests import passes_tests
from fsd_calib.tasks.kinds.multiple_choice import choice_example
from fsd_calib.tasks.rows import HubData, Row, examples_of, read_rows
from fsd_calib.tasks.sandbox.run import checked_bwrap
from fsd_common.addons import imported, is_standard
from fsd_common.argument_checks import named
from fsd_common.digests import facts_digest
from fsd_common.errors import UsageError
from fsd_common.strict_yaml import Strict, checked_yaml, read_text
from fsd_decoding.profile.prompt_form import QUESTION, Message, PromptForm, PromptInfo, WorkedExample, literal
from fsd_decoding.profile.rendering import FormTemplates

GraderName = Literal["exact", "contains", "numeric", "choice", "math", "edit", "python-tests", "python"]
_SETTINGS = {"tolerance": "numeric", "similarity": "edit", "function": "python"}  # key -> the grader that takes it


class Hub(Strict):
    """A data set on the Hugging Face hub.

    Attributes:
        id: `organisation/name`.
        configuration: Its name, where the data set has several.
        splits: What its splits are used for: tuning, certification, or problems (divided by a hash of their content).
    """

    id: str
    configuration: str | None = None
    splits: dict[str, Literal["tuning", "certification", "problems"]] = Field(min_length=1)


class Columns(Strict):
    """The names of the data's columns."""

    question: str = "question"
    answer: str = "answer"
    choices: str | None = None
    subject: str | None = None
    group: str | None = None


class Description(Strict):
    """A whole file.

    Attributes:
        data: A file of problems, relative to this one.
        hub: A data set instead.
        prompt: Template of the prompt for a model without a chat template, up to the answer. Its variables are the
            data's columns, and `question`, `answer` and `choices`.
        instruction: System message of chats, whose user message is the question.
        messages: A whole chat instead.
        examples: Worked examples: rows with the data's columns.
        stop: Strings that end an answer.
        max_new_tokens: Of an answer.
        answer_after: What is graded follows the last of these in a text; a text without one is wrong.
        extract: Regular expression; its last match in a text, or that match's first group, is what is graded.
        grader: How. numeric takes `tolerance`, edit `similarity`, and python `function`.
    """

    data: Path | None = None
    hub: Hub | None = None
    columns: Columns = Columns()
    prompt: str = "Question: {{ question }}\nAnswer:"
    instruction: str | None = None
    messages: tuple[Message, ...] | None = Field(default=None, min_length=1)
    examples: tuple[dict[str, Any], ...] = ()
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = ("\nQuestion:",)
    max_new_tokens: int = Field(default=512, ge=1, le=1 << 20)
    answer_after: Annotated[str, Field(min_length=1)] | None = None
    extract: str | None = None
    grader: GraderName
    tolerance: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    similarity: float | None = Field(default=None, gt=0, le=1)
    function: str | None = None

    @field_validator("extract")
    @classmethod
    def _compiles(cls, pattern: str | None) -> str | None:
        try:
            re.compile(pattern or "")
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"is no regular expression that can be used ({error})") from None
        return pattern

    @field_validator("function")
    @classmethod
    def _is_dotted(cls, function: str | None) -> str | None:
        if function is not None and not re.fullmatch(r"[\w.]+[.:]\w+", function):
            raise ValueError("must be the dotted path of a function, such as my_graders.same_city")
        return function

    @model_validator(mode="after")
    def _agrees(self) -> Description:
        if self.data is not None and self.hub is not None:
            raise ValueError("data and hub are both given; leave one of them out")
        if self.messages is not None and self.instruction is not None:
            raise ValueError("messages and instruction are both given; put the instruction into a system message")
        if self._asks_nothing:
            raise ValueError("its prompts name no column, so all are the same; write {{ question }}, in double braces")
        if self.grader == "choice" and self.columns.choices is None:
            raise ValueError("grader choice needs the options: name their column in columns.choices")
        for key, grader in _SETTINGS.items():
            if getattr(self, key) is not None and self.grader != grader:
                raise ValueError(f"{key} is a setting of grader {grader}, and the grader is {self.grader}")
        for grader, key in (("edit", "similarity"), ("python", "function")):
            if self.grader == grader and getattr(self, key) is None:
                raise ValueError(f"grader {grader} needs {key}")
        return self

    @property
    def _asks_nothing(self) -> bool:
        """Whether no template has a name in it; one that is no template is told when it is rendered."""
        asked = (self.prompt,) if self.messages is None else (self.prompt, *(each.content for each in self.messages))
        written = asked if "prompt" in self.model_fields_set or self.messages is None else asked[1:]
        try:
            return not any(Environment().parse(each).find(nodes.Name) for each in written)
        except (TemplateSyntaxError, RecursionError):
            return False


def check_renders(form: PromptForm, example: Example, where: str) -> None:
    """Raises UsageError where the templates of a form take too long, or too much memory, for an example.

    Args:
        where: whose templates they are, for messages.
    """
    renders = Apart(f"{__name__}:renderer", (form.model_dump_json(),))
    if why := renders.broken_by(example.question, json.dumps(example.row, default=str)):
        raise UsageError(f"{where}: its prompts cannot be rendered ({why}); simplify the template")


def renderer(form: str) -> Callable[[str, str], None]:
    """Returns what renders a question with its columns, and leaves all other faults to who renders it again."""
    templates = FormTemplates(PromptForm.model_validate_json(form), "")

    def render(question: str, columns: str) -> None:
        with suppress(UsageError):
            (templates.text if templates.form.text is not None else templates.chat)(question, json.loads(columns))

    return render


_OWN_SECONDS = 20.0  # CPU time of one call of the user's function


def grader_of(file: Path, description: Description) -> Grader:
    """Returns the grader of a description.

    Args:
        file: Of the description; modules beside it can be imported.

    Raises:
        UsageError: The function that it names cannot be imported, or the sandbox that it needs is not there.
    """
    grader = _grader(file, description)
    return grader if description.extract is None else graders.extracting(description.extract, grader)


def grading_of(file: Path, description: Description) -> str:
    """Returns what tells the grader of a description from others: its settings, and the code that it runs."""
    settings = description.model_dump(include={"grader", "tolerance", "similarity", "extract", "function"})
    if description.function is not None:
        module = inspect.getmodule(_imported(file, description.function))
        code = Path(module.__file__).read_bytes() if module is not None and module.__file__ else b""
        settings["code"] = hashlib.sha256(code).hexdigest()
    return json.dumps(settings, sort_keys=True)


def _grader(file: Path, description: Description) -> Grader:
    match description.grader:
        case "numeric":
            return graders.near_number(description.tolerance or 0.0)
        case "edit":
            assert description.similarity is not None
            return graders.similar(description.similarity)
        case "python":
            assert description.function is not None
            return _own(file, description.function)
        case "python-tests":
            checked_bwrap()  # before anything is decoded that could not be graded
            return passes_tests
        case name:
            return {"exact": graders.same_text, "contains": graders.contains, "choice": graders.same_choice,
                    "math": same_expression}[name]  # fmt: skip


def _own(file: Path, path: str) -> Grader:
    """A grader that calls the user's function with the reference and the text."""
    _imported(file, path)  # before anything is decoded that could not be graded
    renew()  # its file may have changed
    call = Apart(f"{__name__}:own_function", (str(file.resolve()), path), _OWN_SECONDS)

    def own(problem: Problem, text: str) -> bool:
        return bool(call(problem.reference, text))

    return own


def own_function(file: str, path: str) -> Callable[[str, str], bool]:
    """Returns the user's function, for the graders' process. UsageError: it cannot be imported."""
    function = _imported(Path(file), path)
    return lambda reference, text: bool(function(reference, text))


def _imported(file: Path, path: str) -> Callable[[str, str], Any]:
    module, _, name = path.replace(":", ".").rpartition(".")
    _refuse_standard(file, path, module)
    sys.path.insert(0, str(file.parent.resolve()))
    try:
        function = imported(module, name)
    except (Exception, SystemExit) as error:  # it is the user's code: whatever it raises
        raise UsageError(
            f"task file {file}: function {path} cannot be imported ({type(error).__name__}: {error}); its module must "
            "be installed, or beside the file"
        ) from error
    finally:
        sys.path.pop(0)
    _refuse_standard(file, path, str(getattr(function, "__module__", None) or ""))
    if not callable(function):
        raise UsageError(f"task file {file}: {path} is {function!r:.40}; it must be a function")
    return function  # type: ignore[no-any-return]


def _refuse_standard(file: Path, path: str, module: str) -> None:
    """UsageError: a module is of Python itself, as that of `builtins.eval` is, which would run texts and data."""
    if is_standard(module):
        raise UsageError(
            f"task file {file}: function {path} is of Python's own module {module}; name one in a file beside this "
            "one, or in a package that you installed"
        )


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
        """What the file says, checked. UsageError: it is no YAML, or breaks a rule."""
        return checked_yaml(self.content, self.file, Description, "task file", "docs/tasks.md")

    @cached_property
    def content(self) -> str:
        """The file's text. UsageError: it cannot be read."""
        return read_text(self.file, "task file") if self.recorded is None else self.recorded

    @property
    def _asks(self) -> str:
        """See `Task`: the description without its data, so that a file for every month is one task."""
        data: Any = {"data": True, "hub": True, "columns": {"subject", "group"}}
        return f"task {facts_digest(self.description.model_dump(mode='json', exclude=data))}"

    @property
    def data(self) -> Path | None:
        """Its own file of problems; None: it names none."""
        return None if self.description.data is None else self.file.parent / self.description.data

    def load(self, seed: int, limit: int | None, data: Path | None, asking: Asking) -> Task:
        """See `Kind.load`; `data` replaces the description's own."""
        grader, grading = grader_of(self.file, self.description), grading_of(self.file, self.description)
        examples, source = self.read(seed, limit, data)
        info = self.prompts(asking)
        where = f"task file {self.file}"
        assert info.form is not None
        check_renders(info.form, examples[0], where)
        renderer = asking.renderer(info, where)
        problems = [problem_of(example, prompt_of(renderer, example)) for example in examples]
        runs, group = self.description.function or "", self.description.columns.group
        task = task_of(self.name, problems, info, source, grader, grading=grading, runs=runs, asks=self._asks)
        return task if group is None else task.grouped_by(group)

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
        described, written = self.description, self.description.model_fields_set
        if described.messages is not None:
            return described.messages
        # A prompt that was written, where nothing was for chats, is the user's message.
        asked = described.prompt if "prompt" in written and described.instruction is None else QUESTION
        said = [Message(role="system", content=literal(described.instruction))] if described.instruction else []
        return (*said, Message(role="user", content=asked))

    @cached_property
    def _shots(self) -> tuple[WorkedExample, ...]:
        where = f"task file {self.file}, key 'examples'"
        shots = [
            self._example(Row(f"{where}, example {i}", shot))
            for i, shot in enumerate(self.description.examples, start=1)
        ]  # fmt: skip
        # Columns are kept as JSON has them, in which a date is a text.
        columns = [json.loads(json.dumps({**shot.row, "choices": shot.choices}, default=str)) for shot in shots]
        return tuple(
            WorkedExample(question=shot.question, answer=shot.answer, columns=of)
            for shot, of in zip(shots, columns, strict=True)
        )

    def read(self, seed: int, limit: int | None, data: Path | None) -> tuple[Sequence[Example], str]:
        """See `TaskKind`. UsageError: there are no problems, or they are malformed."""
        described = self.description
        where = data or self.data
        if where is not None:
            found, source = examples_of(read_rows(where), self._example), str(where)
        elif described.hub is not None:
            parts = {split: None if use == "problems" else use for split, use in described.hub.splits.items()}
            hub = HubData(described.hub.id, parts, described.hub.configuration)
            found = [replace(self._example(row, part), source=row.columns) for row, part in hub.rows(self.name)]
            source = str(hub)
        else:
            raise UsageError(
                f"task file {self.file}: it names no problems; give it data or hub, or give {named('data')}"
            )
        runs = f", graded by running {described.function}" if described.function else ""
        return pick(found, seed, limit), source + runs

    def _example(self, row: Row, part: Any = None) -> Example:
        columns = self.description.columns
        stratum = str(row[columns.subject]) if columns.subject else ""
        if self.description.grader == "python-tests":  # white space is part of a program
            return Example(row.raw(columns.question), row.raw(columns.answer), part, (), stratum, dict(row.columns))
        question, listed = row.text(columns.question), None if columns.choices is None else row[columns.choices]
        if listed is None:
            return Example(question, _answer(row, columns.answer), part, (), stratum, dict(row.columns))
        made = choice_example(row, question, listed, row[columns.answer], stratum)
        return replace(made, part=part, row=dict(row.columns))


def _answer(row: Row, column: str) -> str:
    """A reference; numbers count as texts, in plain digits."""
    value = row[column]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return row.text(column)
    if not isfinite(value):
        raise UsageError(f"{row.where}: column {column!r} is {value}; it must be a finite number, or a text")
    return f"{Decimal(repr(value)):f}"
