"""What a file that describes a task may say. Errors name file, key and rule."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from jinja2 import Environment, TemplateSyntaxError, nodes
from pydantic import Field, field_validator, model_validator

from fsd_common.strict_yaml import Strict, checked_yaml, read_text
from fsd_decoding.profile.parts import Message

GraderName = Literal["exact", "contains", "numeric", "choice", "math", "edit", "python-tests", "python"]
_FILE = "task file"
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


def read_description(path: Path, content: str) -> Description:
    """Returns what a file says.

    Raises:
        UsageError: It is no YAML, or breaks a rule.
    """
    return checked_yaml(content, path, Description, _FILE, "docs/tasks.md")


def read_description_file(path: Path) -> str:
    """Returns a file's content. UsageError: it cannot be read."""
    return read_text(path, _FILE)
