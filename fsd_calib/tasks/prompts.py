"""Forms of prompts: an instruction for chat models, and worked examples for others; a `TaskKind.form` each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fsd_calib.tasks.asking import Asking
from fsd_decoding.profile.parts import QUESTION, Message, PromptForm, WorkedExample, literal

Exemplar = tuple[str, str]  # question, worked answer

STEP_BY_STEP = (
    "Solve the problem step by step. "
    'End with a line that holds only "#### N", where N is the final answer as a number without units.'
)
STOP = ("\nQuestion:",)  # a model that continues worked examples writes another question next
PLAIN = f"Question: {QUESTION}\nAnswer:"


@dataclass(frozen=True)
class WorkedExamples:
    """Asks chat models by an instruction, and others by worked examples.

    Attributes:
        exemplars: Returns the worked examples for a model without a chat template.
        instruction: What a chat model is told.
    """

    exemplars: Callable[[Asking], Sequence[Exemplar]]
    instruction: str = STEP_BY_STEP

    def __call__(self, asking: Asking) -> tuple[PromptForm, Sequence[str]]:
        if asking.chats:
            return instructed(self.instruction), ()
        examples = (WorkedExample(question=question, answer=answer) for question, answer in self.exemplars(asking))
        return PromptForm(text=PLAIN, examples=tuple(examples)), STOP


def instructed(instruction: str) -> PromptForm:
    """Asks chat models by an instruction, if there is one, and the question."""
    said = (Message(role="system", content=literal(instruction)),) if instruction else ()
    return PromptForm(messages=(*said, Message(role="user", content=QUESTION)))
