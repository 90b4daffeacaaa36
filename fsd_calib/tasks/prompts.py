"""Prompts from questions: through a chat template, or after worked examples.

A chat is the text that its template renders, which may begin with the start token: the decoder adds one only where a
prompt has none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fsd_calib.tasks.base import Prompting
from fsd_decoding.errors import UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Exemplar = tuple[str, str]  # question, worked answer

STEP_BY_STEP = (
    "Solve the problem step by step. "
    'End with a line that holds only "#### N", where N is the final answer as a number without units.'
)
STOP = ("\nQuestion:",)  # a model that continues worked examples writes another question next


@dataclass(frozen=True)
class WorkedExamples:
    """Asks chat models by an instruction, and others by worked examples; a `TaskKind.prompts`.

    Attributes:
        exemplars: Returns the worked examples for a model without a chat template, by its tokenizer.
        instruction: For chat models.
    """

    exemplars: Callable[[PreTrainedTokenizerBase | None], Sequence[Exemplar]]
    instruction: str = STEP_BY_STEP

    def __call__(self, tokenizer: PreTrainedTokenizerBase | None) -> Prompting:
        if tokenizer is not None and has_chat_template(tokenizer):
            chat_of = chat_prompts(tokenizer, self.instruction)
            return Prompting(lambda example: chat_of(example.question), ())
        exemplars = self.exemplars(tokenizer)
        return Prompting(lambda example: plain_prompt(exemplars, example.question), STOP)


def plain_prompt(exemplars: Sequence[Exemplar], question: str) -> str:
    """Returns the worked examples, each followed by a blank line, and the question without its answer."""
    examples = "".join(f"Question: {example}\nAnswer: {answer}\n\n" for example, answer in exemplars)
    return f"{examples}Question: {question}\nAnswer:"


def has_chat_template(tokenizer: PreTrainedTokenizerBase) -> bool:
    return bool(tokenizer.chat_template)


def chat_prompts(tokenizer: PreTrainedTokenizerBase, instruction: str) -> Callable[[str], str]:
    """Returns a function from a question to its chat, up to the beginning of the assistant's answer.

    The instruction is the system message or, where the template rejects one (Gemma, early Mistral), precedes the
    question. A template that ignores system messages is left alone, such as the bundled pair's.

    Raises:
        UsageError: The template cannot render a single user message.
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
            reason = " ".join(str(error).split()) or type(error).__name__
        else:
            return prompt_of
    name = tokenizer.name_or_path or "in hand"
    raise UsageError(f"chat template of tokenizer {name}: cannot render a user message ({reason}); repair it")


def _render(tokenizer: PreTrainedTokenizerBase, *messages: tuple[str, str]) -> str:
    text = tokenizer.apply_chat_template(
        [{"role": role, "content": content} for role, content in messages],
        tokenize=False,
        add_generation_prompt=True,
        enable_thinking=False,  # for templates that support it: reasoning would exceed max_new_tokens
    )
    assert isinstance(text, str)
    return text


def chat_turns(tokenizer: PreTrainedTokenizerBase, messages: Sequence[tuple[str, str]]) -> str:
    """Returns a chat of several messages, as (role, content), up to the beginning of the assistant's answer.

    Raises:
        UsageError: The template cannot render them.
    """
    from jinja2 import TemplateError

    try:
        return _render(tokenizer, *messages)
    except (TemplateError, ValueError) as error:
        roles = ", ".join(role for role, _ in messages)
        reason = " ".join(str(error).split()) or type(error).__name__
        name = tokenizer.name_or_path or "in hand"
        raise UsageError(
            f"chat template of tokenizer {name}: cannot render messages of {roles} ({reason}); give others"
        ) from error
