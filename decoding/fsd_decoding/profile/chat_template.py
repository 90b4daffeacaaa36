"""Chats as the text that a tokenizer's chat template renders, the same on every day.

Templates may show the day (Llama 3, gpt-oss): it is a fixed one here, since a prompt that is another tomorrow is no
longer the one that was certified.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import date
from inspect import signature
from typing import Any

from jinja2 import TemplateError

from fsd_common.errors import UsageError

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
