"""Chats as lm-evaluation-harness renders them: for its tasks here, and for our decoder there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = dict[str, str]  # role, content


def chat_renderer(tokenizer: PreTrainedTokenizerBase) -> Callable[..., str]:
    """Returns the function that lm-eval calls with messages, and whether the assistant's turn is to begin.

    As in lm-eval's own models, a template that rejects system messages is given none.
    """
    from jinja2 import TemplateError

    def render(messages: Sequence[Message], add_generation_prompt: bool = True) -> str:
        try:
            return chat(messages, add_generation_prompt)
        except TemplateError:
            return chat([each for each in messages if each["role"] != "system"], add_generation_prompt)

    def chat(messages: Sequence[Message], begins: bool) -> str:
        text = tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=begins, continue_final_message=not begins
        )
        assert isinstance(text, str)
        return text

    return render
