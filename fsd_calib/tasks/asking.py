"""How a task asks one model: forms of prompts, the tokenizer's chat template, and what a user chose of the prompts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from fsd_common.errors import UsageError
from fsd_common.option import Option, json_object
from fsd_common.settings import Count, Rule, Settings
from fsd_decoding.profile.prompt_form import QUESTION, Message, PromptForm, PromptInfo, WorkedExample, literal

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from fsd_decoding.profile.rendering import PromptRenderer

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


TEMPLATE_ARGUMENTS: Mapping[str, Any] = {"enable_thinking": False}
"""By default: reasoning would exceed the limits of most tasks."""
_THINKING, _END_OF_THOUGHT = "enable_thinking", "</think>"


PROBLEMS = "Problems and results"
"""The panel of `--help`."""
MOST_NEW_TOKENS = 256
"""The limit on new tokens where no task sets one."""
MAX_NEW_TOKENS = f"Limit on new tokens per text. By default the task's, or {MOST_NEW_TOKENS} without a task."


class PromptOptions(Settings):
    """What a user chooses of prompts; None: as the task has it."""

    system: Annotated[str | None, Option("Replace the task's system message; '' leaves it out.", PROBLEMS)] = None
    chat_template_kwargs: Annotated[
        Annotated[Mapping[str, Any], Rule('it must be names with values, such as {"enable_thinking": true}')] | None,
        Option(
            "Arguments of the target's chat template, as a JSON object. By default '{\"enable_thinking\": false}'; "
            "with true, what follows the thought is graded.",
            PROBLEMS,
            read=lambda option, text: json_object(option, text, '{"enable_thinking": true}'),
        ),
    ] = None
    max_new_tokens: Annotated[Count | None, Option(MAX_NEW_TOKENS, PROBLEMS)] = None
    answer_after: Annotated[
        str | None,
        Option(
            "Grade what follows the last of these in a text, such as the end of a thought; a text without one is "
            "wrong. '' grades all of it. By default as the task and the chat template's arguments say.",
            PROBLEMS,
        ),
    ] = None

    @property
    def template_arguments(self) -> dict[str, Any]:
        """What chat templates are given besides messages."""
        return {**TEMPLATE_ARGUMENTS, **(self.chat_template_kwargs or {})}


@dataclass(frozen=True)
class Asking:
    """The model that is asked, and how.

    Attributes:
        tokenizer: Has the chat template; None: prompts are plain texts.
        recorded: How prompts of a profile were made: they are made so again, whatever the task says now.
    """

    tokenizer: PreTrainedTokenizerBase | None = None
    options: PromptOptions = field(default_factory=PromptOptions)
    recorded: PromptInfo | None = None

    def __post_init__(self) -> None:
        chosen = self.options
        if not self.chats and (chosen.system is not None or chosen.chat_template_kwargs is not None):
            given = "system" if chosen.system is not None else "chat_template_kwargs"
            raise UsageError(f"{given} is for chat templates, and the target's tokenizer has none; leave it out")
        if self.chats:
            from fsd_decoding.profile.rendering import check_arguments

            check_arguments(self.tokenizer, chosen.template_arguments)

    @property
    def chats(self) -> bool:
        """Whether prompts are chats."""
        from fsd_decoding.profile.rendering import has_chat_template

        return has_chat_template(self.tokenizer)

    def renderer(self, info: PromptInfo, where: str) -> PromptRenderer:
        """Returns what makes prompts as `info` says; see `PromptRenderer`."""
        from fsd_decoding.profile.rendering import PromptRenderer

        return PromptRenderer(info, self.tokenizer, where)

    def info(
        self, form: PromptForm | None, stop: Sequence[str], max_new_tokens: int, specification: str | None = None,
        answer_after: str | None = None, digest_of: str | None = None,
    ) -> PromptInfo:  # fmt: skip
        """Returns how prompts are made.

        Args:
            form: their templates; None: the task's own code makes them.
            stop, max_new_tokens, answer_after: as the task has them.
            specification: the whole content of the file that describes the task.
            digest_of: what specifies the task where neither a file nor a form does.

        Raises:
            UsageError: options differ from what a profile recorded.
        """
        if self.recorded is not None:
            self._check_recorded(self.recorded)
            return self.recorded
        specified = specification or digest_of or (form.model_dump_json() if form is not None else "")
        chosen, form = self.options, self._with_system(form)
        made = PromptInfo(
            specification=specification,
            digest=hashlib.sha256(specified.encode()).hexdigest(),
            form=form,
            template=None,
            stop=tuple(stop),
            max_new_tokens=chosen.max_new_tokens or max_new_tokens,
            answer_after=self._answer_after(answer_after) or None,
        )
        return self._for_template(made) if self.chats else made

    def _for_template(self, made: PromptInfo) -> PromptInfo:
        from fsd_decoding.profile.rendering import reads_clock, rejects_system, render_chat, template_digest
        from fsd_decoding.text import prompt_tokens

        arguments = self._template_arguments
        begins = render_chat(self.tokenizer, [("user", "x")], arguments)
        folds = rejects_system(self.tokenizer, arguments)
        says_more = made.form is not None and bool(made.form.system) and not folds
        assert self.tokenizer is not None
        bare = self.tokenizer(begins, add_special_tokens=False)["input_ids"]
        found = {
            "template": template_digest(self.tokenizer),
            "template_arguments": arguments,
            "clock": reads_clock(self.tokenizer, arguments, ("system", "user") if says_more else ("user",)),
            "system_before_user": folds,
            "special_tokens": prompt_tokens(self.tokenizer, begins) != bare,
        }  # fmt: skip
        return PromptInfo.model_validate(made.model_dump() | found)

    @property
    def _template_arguments(self) -> dict[str, Any]:
        from fsd_decoding.profile.rendering import with_day

        return with_day(self.tokenizer, self.options.template_arguments)

    def _with_system(self, form: PromptForm | None) -> PromptForm | None:
        system = self.options.system
        if system is None or form is None:
            return form
        said = (Message(role="system", content=literal(system)),) if system else ()
        return form.model_copy(update={"messages": (*said, *form.asking)})

    def _answer_after(self, of_task: str | None) -> str | None:
        chosen = self.options.answer_after
        if chosen is not None or of_task is not None:
            return of_task if chosen is None else chosen
        thinks = self.options.template_arguments.get(_THINKING) is True
        if not thinks or self.tokenizer is None or not self.chats:
            return None
        return _END_OF_THOUGHT if _THINKING in str(self.tokenizer.get_chat_template()) else None

    def _check_recorded(self, recorded: PromptInfo) -> None:
        from fsd_decoding.profile.rendering import check_template

        check_template(recorded, self.tokenizer, "the profile's prompts")
        chosen, form = self.options, recorded.form
        said = None if form is None or form.text is not None else "\n\n".join(each.content for each in form.system)
        differing = {
            "chat_template_kwargs": (
                None if chosen.chat_template_kwargs is None else self._template_arguments, recorded.template_arguments,
            ),
            "system": (chosen.system and literal(chosen.system), said),
            "max_new_tokens": (chosen.max_new_tokens, recorded.max_new_tokens),
            "answer_after": (chosen.answer_after, recorded.answer_after or ""),
        }  # fmt: skip
        for name, (now, then) in differing.items():
            if now is not None and now != then:
                raise UsageError(
                    f"{name} is {now!r:.60}, and the profile's prompts were made with {then!r:.60}; leave it out, or "
                    "calibrate again"
                )
