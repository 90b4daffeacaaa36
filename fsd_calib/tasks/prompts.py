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
            return instructed(tokenizer, self.instruction)
        exemplars = self.exemplars(tokenizer)
        return Prompting(lambda example: plain_prompt(exemplars, example.question), STOP)


def instructed(tokenizer: PreTrainedTokenizerBase, instruction: str) -> Prompting:
    """Asks chat models by an instruction and the question."""
    return Prompting(lambda e: chat_turns(tokenizer, [("system", instruction), ("user", e.question)]), ())


def plain_prompt(exemplars: Sequence[Exemplar], question: str) -> str:
    """Returns the worked examples, each followed by a blank line, and the question without its answer."""
    examples = "".join(f"Question: {example}\nAnswer: {answer}\n\n" for example, answer in exemplars)
    return f"{examples}Question: {question}\nAnswer:"


def has_chat_template(tokenizer: PreTrainedTokenizerBase) -> bool:
    return bool(tokenizer.chat_template)


def chat_turns(tokenizer: PreTrainedTokenizerBase, messages: Sequence[tuple[str, str]]) -> str:
    """Returns a chat, given as (role, content), up to the beginning of the assistant's answer.

    A system message that the template rejects (Gemma, early Mistral) precedes the first user message instead. A
    template that ignores system messages is left alone, such as the bundled pair's.

    Raises:
        UsageError: The template cannot render them.
    """
    from jinja2 import TemplateError

    errors = []
    for turns in (messages, _without_system(messages)):
        try:
            return _render(tokenizer, turns)
        except (TemplateError, ValueError) as error:
            errors.append(" ".join(str(error).split()) or type(error).__name__)
    roles = " and ".join(dict.fromkeys(role for role, _ in messages))
    raise UsageError(
        f"chat template of tokenizer {tokenizer.name_or_path or 'in hand'}: cannot render messages of {roles} "
        f"({errors[-1]}); repair it, or ask by other messages"
    )


def _without_system(messages: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    instruction = [content for role, content in messages if role == "system"]
    others = [message for message in messages if message[0] != "system"]
    if instruction and others and others[0][0] == "user":
        others[0] = ("user", "\n\n".join([*instruction, others[0][1]]))
    return others


def _render(tokenizer: PreTrainedTokenizerBase, messages: Sequence[tuple[str, str]]) -> str:
    text = tokenizer.apply_chat_template(
        [{"role": role, "content": content} for role, content in messages],
        tokenize=False,
        add_generation_prompt=True,
        enable_thinking=False,  # for templates that support it: reasoning would exceed max_new_tokens
    )
    assert isinstance(text, str)
    return text
