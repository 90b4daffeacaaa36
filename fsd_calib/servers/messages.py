"""Prompts for a server that renders chats itself: the messages, in the place of the text that a template makes of them.

A task asks its tokenizer for a chat template, and takes what that renders as the prompt. The one here renders nothing:
its text is the messages, one behind the other, which requests then hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fsd_common.errors import UsageError

_MESSAGE, _CONTENT = "\x1e", "\x1f"  # ASCII's separators of records and of units, which texts do not hold


class ServersTemplate:
    """A tokenizer with the chat template of a server, which is not known here."""

    name_or_path = "the server's"
    chat_template = "messages"
    bos_token = None

    def get_chat_template(self) -> str:
        return self.chat_template

    def apply_chat_template(
        self, conversation: Sequence[Mapping[str, str]], tokenize: bool = False, add_generation_prompt: bool = True,
        continue_final_message: bool = False, chat_template: str | None = None, **arguments: Any,
    ) -> str:  # fmt: skip
        """Returns the messages as a text; `arguments` are the server's, see `template_arguments`."""
        for message in conversation:
            if held := next((each for each in (_MESSAGE, _CONTENT) if each in message["content"]), None):
                raise UsageError(f"a prompt holds the control character {held!r}, which no chat has; leave it out")
        return "".join(f"{_MESSAGE}{each['role']}{_CONTENT}{each['content']}" for each in conversation)

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": []}  # the server adds what is special


def messages_in(prompt: str) -> list[dict[str, str]]:
    """Returns the messages that a prompt of `ServersTemplate` holds."""
    turns = (each.partition(_CONTENT) for each in prompt.split(_MESSAGE)[1:])
    return [{"role": role, "content": content} for role, _, content in turns]


def shown(prompt: str) -> str:
    """Returns a prompt as people read it."""
    found = messages_in(prompt)
    return "\n\n".join(f"{each['role']}: {each['content']}" for each in found) if found else prompt
