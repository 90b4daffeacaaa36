"""How prompts are made: templates, the record of them that a profile has, and what a template leaves as it is."""

from __future__ import annotations

import json
from typing import Self

from pydantic import Field, JsonValue, model_validator

from fsd_decoding.profile.parts import Digest, Natural, Part

QUESTION = "{{ question }}"
"""The template of the question alone."""
LETTERS = "ABCDEFGHIJ"
"""What options are called, in order."""
_SPECIAL = ("{{", "{%", "{#", "\r")  # what a template does not leave as it is


def literal(text: str) -> str:
    """Returns the template of a text that is used as it is."""
    changed = any(special in text for special in _SPECIAL) or text.endswith("\n")
    return f"{{{{ {json.dumps(text, ensure_ascii=False)} }}}}" if changed else text


class Message(Part):
    """A message of a chat."""

    role: str
    """Who speaks: system, user, assistant or another role that the chat template knows."""
    content: str
    """A Jinja template of the text."""


class WorkedExample(Part):
    """A question with its answer, which prompts show before the question that they ask."""

    question: str
    """The question."""
    answer: str
    """The whole answer."""
    columns: dict[str, JsonValue] = Field(default={})
    """What templates can use besides."""


class PromptForm(Part):
    """The templates of prompts, in Jinja. Their variables are `question`, `answer`, `choices`, `letters` and the
    columns of the task's data; a question of a user's own has no columns."""

    text: str | None = None
    """The whole prompt up to the answer, for a model without a chat template. null: prompts are chats."""
    messages: tuple[Message, ...] = ()
    """A chat up to the answer."""
    question: str = "question"
    """What templates call the question besides `question`."""
    examples: tuple[WorkedExample, ...] = ()
    """Worked examples: rendered before the prompt, and in a chat as earlier turns by all messages but those of the
    system. One that asks what the prompt asks is left out."""

    @model_validator(mode="after")
    def _has_one_form(self) -> Self:
        if (self.text is None) != bool(self.messages):
            raise ValueError("text and messages are both given, or neither is; prompts are texts or chats")
        return self

    @property
    def system(self) -> tuple[Message, ...]:
        """The messages that begin a chat."""
        return tuple(message for message in self.messages if message.role == "system")

    @property
    def asking(self) -> tuple[Message, ...]:
        """The messages that ask a question, a worked example's too."""
        return tuple(message for message in self.messages if message.role != "system")


class PromptInfo(Part):
    """How prompts were made and texts ended: what a certificate covers."""

    specification: str | None = None
    """The whole content of the file in YAML that describes the task. null: the task is a package's."""
    digest: Digest
    """SHA-256 of the specification; of a package's task of its form, or of its configuration."""
    form: PromptForm | None
    """What prompts are rendered from. null: the task's own code makes them, of whole documents."""
    template: Digest | None
    """SHA-256 of the chat template that rendered the messages. null: prompts are plain texts."""
    template_arguments: dict[str, JsonValue] = Field(default={})
    """What the chat template was given besides messages, such as enable_thinking."""
    clock: bool = False
    """Whether the chat template writes the day into prompts and takes it from no argument: it is 26 July 2024 in these,
    and in a server's the day on which they are sent."""
    system_before_user: bool = False
    """Whether what the system says precedes the first user message in that message, as the chat template rejects the
    role."""
    special_tokens: bool = True
    """Whether the tokenizer adds its special tokens, such as a start, to the prompt."""
    stop: tuple[str, ...] = ()
    """Strings that end a text."""
    max_new_tokens: Natural
    """The most tokens of a text."""
    answer_after: str | None = None
    """What is graded follows the last of these, as the answer of a thinking model follows </think>; a text without one
    is wrong. null: the whole text is graded."""
