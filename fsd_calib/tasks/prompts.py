"""How a question becomes a prompt: through a chat template, or after worked examples.

Knows the two forms and nothing of particular tasks. A chat is text just as its template renders it, which
may begin with the start token: the decoder adds one only where a prompt has none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fsd_decoding.errors import UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Exemplar = tuple[str, str]  # question, worked answer

STEP_BY_STEP = (
    "Solve the problem step by step. "
    'End with a line that holds only "#### N", where N is the final answer as a number without units.'
)
STOP = ("\nQuestion:",)  # a model that continues worked examples goes on with a question of its own


def plain_prompt(exemplars: Sequence[Exemplar], question: str) -> str:
    """The worked examples, one blank line after each, and the question left to be answered."""
    shown = "".join(f"Question: {asked}\nAnswer: {answer}\n\n" for asked, answer in exemplars)
    return f"{shown}Question: {question}\nAnswer:"


def has_chat_template(tokenizer: PreTrainedTokenizerBase) -> bool:
    return bool(tokenizer.chat_template)


def chat_prompts(tokenizer: PreTrainedTokenizerBase, instruction: str) -> Callable[[str], str]:
    """A function from a question to the chat that asks it, opened for the assistant's answer.

    The instruction is the system message or, where the template refuses one (Gemma, early Mistral), stands
    before the question. A template that ignores system messages is taken to know better, as the bundled
    pair's does. Raises UsageError where the template cannot render even a single user message.
    """
    from jinja2 import TemplateError

    def with_system(question: str) -> str:
        return _render(tokenizer, ("system", instruction), ("user", question))

    def without_system(question: str) -> str:
        return _render(tokenizer, ("user", f"{instruction}\n\n{question}"))

    for prompt_of in (with_system, without_system):
        try:
            prompt_of("How many?")
        except (TemplateError, ValueError) as error:
            refusal = " ".join(str(error).split()) or type(error).__name__
        else:
            return prompt_of
    name = tokenizer.name_or_path or "in hand"
    raise UsageError(f"chat template of tokenizer {name}: cannot render a user message ({refusal}); repair it")


def _render(tokenizer: PreTrainedTokenizerBase, *messages: tuple[str, str]) -> str:
    text = tokenizer.apply_chat_template(
        [{"role": role, "content": content} for role, content in messages],
        tokenize=False,
        add_generation_prompt=True,
        enable_thinking=False,  # where a template knows it: thinking aloud would outrun max_new_tokens
    )
    assert isinstance(text, str)
    return text
