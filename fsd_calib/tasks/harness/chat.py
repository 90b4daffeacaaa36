"""Chats as lm-evaluation-harness asks for them: for its tasks here, and for our decoder there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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

    folds = rejects_system(tokenizer, arguments)

    def render(messages: Sequence[Message], add_generation_prompt: bool = True) -> str:
        turns = [(each["role"], each["content"]) for each in messages]
        return render_chat(tokenizer, system_before_user(turns) if folds else turns, arguments, add_generation_prompt)

    return render
