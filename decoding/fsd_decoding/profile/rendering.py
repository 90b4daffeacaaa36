"""Prompts from questions, for calibrations and for whatever follows their profiles: through a chat template, or plain.

A chat is the text that its template renders, which may begin with the start token: the decoder adds one only where a
prompt has none. Templates may show the day (Llama 3, gpt-oss): it is a fixed one here, since a prompt that is another
tomorrow is no longer the one that was certified.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date
from functools import cached_property, lru_cache
from inspect import signature
from os.path import commonprefix
from typing import Any

from jinja2 import DebugUndefined, Environment, StrictUndefined, Template, TemplateError, Undefined
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import ImmutableSandboxedEnvironment

from fsd_common.errors import UsageError
from fsd_decoding.profile.prompt_form import LETTERS, QUESTION, Message, PromptForm, PromptInfo, WorkedExample
from fsd_decoding.text import prompt_tokens

Turn = tuple[str, str]  # role and text of a message
DAY = date(2024, 7, 26)
"""The day of all prompts: the one that Llama's templates show where there is no clock."""
FAILURES = (TemplateError, TypeError, ValueError, ArithmeticError, LookupError)
"""What a template may raise."""
_CLOCK, _DATE = "strftime_now", "date_string"  # transformers' clock, and the argument that Llama's templates prefer
_DIRECTIVES = "aAwdbBmyYHIMSpjUWcxX"  # of the C standard
_OTHER_DAY = date(1999, 1, 3)
_OF_RENDERING = ("messages", "conversations", _CLOCK)


def render_chat(
    tokenizer: Any, turns: Sequence[Turn], arguments: Mapping[str, Any], add_generation_prompt: bool = True
) -> str:
    """Returns the text of a chat, up to the beginning of the assistant's answer, or within the answer that it ends in.

    Raises:
        UsageError: the template cannot render the messages, or what it renders lacks the text of one.
    """
    try:
        text = _apply(tokenizer, turns, arguments, add_generation_prompt)
    except FAILURES as error:
        raise UsageError(
            f"chat template of tokenizer {name_of(tokenizer)}: cannot render messages of "
            f"{' and '.join(dict.fromkeys(role for role, _ in turns))} ({reason_of(error)}); repair it, or ask by "
            "other messages"
        ) from error
    if (lost := _lost(turns, text)) is not None:
        role, content = lost
        way = (
            "leave the system message out (--system ''), or put it into the user's message (a task in YAML: prompt)"
            if role == "system"
            else "repair it, or ask by other messages"
        )
        raise UsageError(
            f"chat template of tokenizer {name_of(tokenizer)}: leaves out or changes the {role} message "
            f"{content!r:.60}, so the model would not read it; {way}"
        )
    return text


def _lost(turns: Sequence[Turn], text: str) -> Turn | None:
    """The first turn, the longest one first, that a text lacks: what occurs within another turn is not enough."""
    for turn in sorted(turns, key=lambda each: len(each[1]), reverse=True):
        content = turn[1].strip()
        if content not in text:
            return turn
        text = text.replace(content, "\0", 1)
    return None


def rejects_system(tokenizer: Any, arguments: Mapping[str, Any]) -> bool:
    """Whether a chat template rejects messages of the system (Gemma, early Mistral)."""
    try:
        _apply(tokenizer, [("system", "x"), ("user", "x")], arguments, True)
    except FAILURES:
        return True
    return False


def system_before_user(turns: Sequence[Turn]) -> list[Turn]:
    """Returns a chat in which what the system says precedes the first user message, in that message."""
    said = [content for role, content in turns if role == "system"]
    others = [turn for turn in turns if turn[0] != "system"]
    if said and others and others[0][0] == "user":
        others[0] = ("user", "\n\n".join([*said, others[0][1]]))
    return others


def has_chat_template(tokenizer: Any) -> bool:
    """Whether prompts for a tokenizer's model are chats; None has no template."""
    return tokenizer is not None and bool(tokenizer.chat_template)


def template_digest(tokenizer: Any) -> str | None:
    """Returns the SHA-256 (hex) of a tokenizer's chat template; None: it has none."""
    if not has_chat_template(tokenizer):
        return None
    return hashlib.sha256(tokenizer.get_chat_template().encode()).hexdigest()


def check_arguments(tokenizer: Any, arguments: Mapping[str, Any]) -> None:
    """Raises UsageError where what a user gives a chat template is given to it by whoever renders it."""
    own = {*signature(type(tokenizer).apply_chat_template).parameters, *_OF_RENDERING}
    if reserved := next((name for name in arguments if name in own), None):
        raise UsageError(
            f"chat_template_kwargs has {reserved!r}, which prompts are rendered with already and chat templates do not "
            "take from users; leave it out"
        )


def with_day(tokenizer: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments, with the day of all prompts where the template takes that in place of its clock's.

    A server, whose clock goes on, renders the same prompts by them.

    Raises:
        UsageError: see `render_chat`.
    """
    dated = {**arguments, _DATE: f"{DAY:%d %b %Y}"}
    return dated if reads_clock(tokenizer, arguments) and not reads_clock(tokenizer, dated) else {**arguments}


def reads_clock(tokenizer: Any, arguments: Mapping[str, Any], roles: Sequence[str] = ("user",)) -> bool:
    """Whether a clock that goes on would make another text every day of messages of these roles.

    Raises:
        UsageError: see `render_chat`.
    """
    if _CLOCK not in tokenizer.get_chat_template():
        return False
    turns = [(role, "x") for role in roles]
    render_chat(tokenizer, turns, arguments)
    return _apply(tokenizer, turns, arguments, True) != _apply(tokenizer, turns, arguments, True, _OTHER_DAY)


def _apply(tokenizer: Any, turns: Sequence[Turn], arguments: Mapping[str, Any], begins: bool, day: date = DAY) -> str:
    template = tokenizer.get_chat_template()
    text = tokenizer.apply_chat_template(
        [{"role": role, "content": content} for role, content in turns], tokenize=False, add_generation_prompt=begins,
        continue_final_message=not begins, chat_template=_stopped(day) + template if _CLOCK in template else None,
        **arguments,
    )  # fmt: skip
    assert isinstance(text, str)
    return text


def _stopped(day: date) -> str:
    """The macro, in a line of its own, that a template calls in place of transformers' clock."""
    texts = {each: f"{day:%{each}}" for each in _DIRECTIVES}
    texts |= {f"-{each}": text.lstrip("0") or "0" for each, text in texts.items()}  # without zeros at the beginning
    shown = "".join(f" | replace('%{each}', '{text}')" for each, text in texts.items())
    return f"{{% macro {_CLOCK}(format) %}}{{{{ format{shown} }}}}{{% endmacro %}}\n"


def name_of(tokenizer: Any) -> str:
    """Returns what messages call a tokenizer."""
    return getattr(tokenizer, "name_or_path", None) or "in hand"


def reason_of(error: Exception) -> str:
    """Returns an error's message in one line."""
    return " ".join(str(error).split()) or type(error).__name__


_USUAL = {"answer": "", "choices": [], "letters": LETTERS}  # variables of templates beside the question
_PROBES: tuple[tuple[str, dict[str, Any]], ...] = (  # questions that have nothing in common
    ("?", {"answer": "?", "choices": ["?"] * 2}),
    ("\ufffc" * 300, {"answer": "\ufffc", "choices": ["\ufffc"] * 5}),
    (" \n0\n ", {"answer": "0", "choices": ["0"] * 3}),
)


def _environment(undefined: type[Undefined]) -> Environment:
    """Returns Jinja's sandbox without what makes another text each time."""
    environment = ImmutableSandboxedEnvironment(undefined=undefined, keep_trailing_newline=False)
    del environment.globals["lipsum"], environment.filters["random"]
    return environment


_ENVIRONMENT, _SKETCHING = _environment(StrictUndefined), _environment(DebugUndefined)  # which leaves what is unknown


class PromptRenderer:
    """Makes prompts as a record says.

    Args:
        info: how prompts are made.
        tokenizer: has the chat template; None: there is none.
        where: whose prompts they are, for messages.

    Raises:
        UsageError: the tokenizer has another chat template than the record, or the record has no form.
    """

    def __init__(self, info: PromptInfo, tokenizer: Any, where: str) -> None:
        self.info, self._tokenizer = info, tokenizer
        if info.form is None:
            raise UsageError(f"{where} are made of whole documents by the task's own code, and a question is none")
        check_template(info, tokenizer, where)
        self._asked = FormTemplates(info.form, where)

    @property
    def stop(self) -> tuple[str, ...]:
        """Strings that end a text."""
        return self.info.stop

    @property
    def max_new_tokens(self) -> int:
        """The most tokens of a text."""
        return self.info.max_new_tokens

    def prompt(self, question: str, columns: Mapping[str, Any] | None = None) -> str:
        """Returns the prompt of a question.

        Args:
            columns: further variables of templates.

        Raises:
            UsageError: a template needs another column, or the chat template cannot render the messages or leaves one
                out.
        """
        if self.info.template is None:
            return self._asked.text(question, columns or {})
        return self.render(self._asked.chat(question, columns or {}))

    def render(self, turns: Sequence[Turn]) -> str:
        """Returns the prompt that a chat is. UsageError: see `render_chat`."""
        sent = system_before_user(turns) if self.info.system_before_user else turns
        return render_chat(self._tokenizer, sent, self.info.template_arguments)

    def asks(self, prompt: str) -> bool | None:
        """Whether a prompt is one of these, whatever it asks; None: that cannot be told, as questions have columns."""
        if self._frame is None:
            return None
        (before, behind), text = self._frame, self._unstarted(prompt)
        return (text.startswith(before) and text.endswith(behind)) or text in self._of_examples

    @cached_property
    def _frame(self) -> tuple[str, str] | None:
        """What all prompts begin and end with, but those that ask what a worked example asks."""
        if self._asked.needs_columns:
            return None
        try:
            made = [self.prompt(*probe) for probe in _PROBES]
        except UsageError:
            return None
        if self._asked.adds_nothing and self.info.template is not None:  # whole chats may be asked, as in `agreement`
            with suppress(UsageError):
                made.append(self.render([("system", "?"), ("user", "?")]))
        texts = [self._unstarted(prompt) for prompt in made]
        before, behind = (commonprefix(each) for each in (texts, [text[::-1] for text in texts]))  # noqa: RUF071  of texts
        return before, behind[::-1]

    @cached_property
    def _of_examples(self) -> list[str]:
        """The prompts that ask what a worked example asks, which is left out of them."""
        examples = self.info.form.examples if self.info.form is not None else ()
        return [self._unstarted(self.prompt(each.question, _of(each))) for each in examples]

    def _unstarted(self, prompt: str) -> str:
        """A prompt without the start token that the tokenizer adds where it is missing."""
        start = getattr(self._tokenizer, "bos_token", None)
        bare = prompt.removeprefix(start or "")
        same = bare != prompt and prompt_tokens(self._tokenizer, prompt) == prompt_tokens(self._tokenizer, bare)
        return bare if same else prompt


def check_template(info: PromptInfo, tokenizer: Any, where: str) -> None:
    """Raises UsageError where chats were rendered by another template than a tokenizer has; see `PromptRenderer`."""
    if info.template is None or info.template == (found := template_digest(tokenizer)):
        return
    raise UsageError(
        f"{where} were rendered by the chat template {info.template[:12]}, and the tokenizer {name_of(tokenizer)} has "
        f"{'none' if found is None else found[:12]}; load the tokenizer that the calibration had"
    )


def request_of(info: PromptInfo) -> dict[str, Any]:
    """Returns the body of a request to a server that renders the same prompts: `messages`, or else a `prompt`.

    Questions and columns stand in it as in templates: {{ question }}.

    Raises:
        UsageError: the record has no form.
    """
    if info.form is None:
        raise UsageError("prompts are made of whole documents by the task's own code; send them as /v1/completions")
    asked = FormTemplates(info.form, "the prompts", _SKETCHING)
    ends = {"max_tokens": info.max_new_tokens, **({"stop": list(info.stop)} if info.stop else {})}
    if info.template is None:
        return {"prompt": asked.text(QUESTION, {}), **ends}
    turns = asked.chat(QUESTION, {})
    sent = system_before_user(turns) if info.system_before_user else turns
    begins = {"add_special_tokens": True} if info.special_tokens else {}
    return {"messages": [{"role": role, "content": content} for role, content in sent], **begins, **ends}


class FormTemplates:
    """The templates of a form, to be filled in.

    Args:
        form: how prompts are made.
        where: whose prompts they are, for messages.
    """

    def __init__(self, form: PromptForm, where: str, environment: Environment = _ENVIRONMENT) -> None:
        self.form, self._where, self._environment = form, where, environment

    @property
    def needs_columns(self) -> bool:
        """Whether templates use more of a problem than its question, answer and choices."""
        sources = (self.form.text or "", *(message.content for message in self.form.messages))
        used = set[str]().union(*(find_undeclared_variables(self._environment.parse(each)) for each in sources))
        return not used <= {"question", self.form.question, *_USUAL}

    @property
    def adds_nothing(self) -> bool:
        """Whether a chat is a user's message, which is the question."""
        return self.form.messages == (Message(role="user", content=QUESTION),) and not self.form.examples

    def text(self, question: str, columns: Mapping[str, Any]) -> str:
        """Returns a plain prompt."""
        worked = (f"{self._text(each.question, _of(each))} {each.answer}\n\n" for each in self._examples(question))
        return "".join(worked) + self._text(question, columns)

    def chat(self, question: str, columns: Mapping[str, Any]) -> list[Turn]:
        """Returns the messages that ask a question."""
        turns = [self._turn(message, question, columns) for message in self.form.system]
        for each in self._examples(question):
            turns += [self._turn(message, each.question, _of(each)) for message in self.form.asking]
            turns.append(("assistant", each.answer))
        return turns + [self._turn(message, question, columns) for message in self.form.asking]

    def _examples(self, question: str) -> Iterator[WorkedExample]:
        return (each for each in self.form.examples if each.question != question)

    def _turn(self, message: Message, question: str, columns: Mapping[str, Any]) -> Turn:
        return message.role, self._rendered(message.content, f"{message.role} message", question, columns)

    def _text(self, question: str, columns: Mapping[str, Any]) -> str:
        return self._rendered(self.form.text or "", "key 'prompt'", question, columns)

    def _rendered(self, source: str, key: str, question: str, columns: Mapping[str, Any]) -> str:
        asked = {"question": question, self.form.question: question}
        variables = {**_USUAL, **columns, **asked}
        try:
            text = self._template(source, key).render(variables)
            text.encode()  # a template can write half a character
            return text
        except (*FAILURES, RecursionError) as error:
            known = ", ".join(variables)
            raise UsageError(
                f"{self._where}, {key}: cannot be rendered ({reason_of(error)}); its variables are {known}"
            ) from None

    def _template(self, source: str, key: str) -> Template:
        try:
            return _compiled(self._environment, source)
        except (TemplateError, RecursionError) as error:
            raise UsageError(f"{self._where}, {key}: no Jinja template ({reason_of(error)}); repair it") from None


@lru_cache(maxsize=256)
def _compiled(environment: Environment, source: str) -> Template:
    """A template, of which the worked examples of every problem ask for the same."""
    return environment.from_string(source)


def _of(example: WorkedExample) -> dict[str, Any]:
    return {**example.columns, "answer": example.answer}
