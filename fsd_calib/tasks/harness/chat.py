"""Chats as lm-evaluation-harness asks for them: for its tasks here, and for our decoder there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from fsd_decoding.profile.rendering import rejects_system, render_chat, system_before_user

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = dict[str, str]  # role, content


def chat_renderer(tokenizer: PreTrainedTokenizerBase, arguments: Mapping[str, Any]) -> Callable[..., str]:
    """Returns the function that lm-eval calls with messages, and whether the assistant's turn is to begin.

    What the system says precedes the first user message where the template rejects the role; lm-eval's own models leave
    it out.

    Args:
        arguments: of the chat template.
    """

    @cache
    def rejects(roles: tuple[str, ...]) -> bool:
        return rejects_system(tokenizer, roles, arguments)

    def render(messages: Sequence[Message], add_generation_prompt: bool = True) -> str:
        turns = [(each["role"], each["content"]) for each in messages]
        if any(role == "system" for role, _ in turns):
            asked = tuple(role for role, _ in turns if role != "assistant")[:2]
            turns = system_before_user(turns) if rejects(asked) else turns
        return render_chat(tokenizer, turns, arguments, add_generation_prompt)

    return render
