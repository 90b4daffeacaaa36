"""How commands format a prompt that a user gives: as a task does, or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from fsd_calib.cli.console import say
from fsd_calib.cli.options import MOST_NEW_TOKENS
from fsd_calib.tasks.base import Example, Kind, Prompting
from fsd_calib.tasks.registry import task_kind
from fsd_decoding.errors import UsageError


class PromptFormat(NamedTuple):
    """The format of prompts, the strings that end a text, and the limit on its new tokens."""

    prompting: Prompting
    max_new_tokens: int

    @classmethod
    def of(cls, kind: Kind | None, tokenizer: Any) -> PromptFormat:
        """Returns the format of a task; None: prompts are passed as given."""
        if kind is None:
            return cls(Prompting(lambda example: example.question, ()), MOST_NEW_TOKENS)
        return cls(kind.prompts(tokenizer), kind.max_new_tokens)

    @property
    def stop(self) -> Sequence[str]:
        return self.prompting.stop

    def prompt(self, text: str) -> str:
        """Returns the prompt as the models read it. UsageError: the format needs more than a question."""
        try:
            return self.prompting.prompt_of(Example(text, ""))
        except UsageError as error:
            raise UsageError(f"{error}; --raw passes prompts as given") from error


def kind_of_profile(command: str, task: str) -> Kind | None:
    """Returns how prompts of a profile's task are formatted; None, which is said: it is not found here, as a file that
    is elsewhere."""
    try:
        return task_kind(task)
    except UsageError as error:
        say(command, f"prompts are passed as given, without the format of the profile's task: {error}")
        return None
