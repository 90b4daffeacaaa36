"""Whether a prompt is one of a profile's: one that its calibration would have made is never taken for another."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers.processors import TemplateProcessing

from fsd_decoding.profile.prompt_form import QUESTION, Message, PromptForm, PromptInfo, WorkedExample
from fsd_decoding.profile.rendering import PromptRenderer, rejects_system, template_digest
from support.calibration.task_files import GEMMA, LLAMA, QWEN, THINKING, tokenizer_of

PLAIN = "Question: {{ question }}\nAnswer:"
EXAMPLES = tuple(WorkedExample(question=f"{n} + {n}?", answer=str(2 * n)) for n in (1, 2, 3))
OPTIONS: dict[str, Any] = {"choices": ["red", "green", "blue", "none"], "answer": "B"}


def renderer(form: PromptForm, template: str | None = None, **tokenizer: Any) -> PromptRenderer:
    made = tokenizer_of(template, **tokenizer)
    folds = template is not None and rejects_system(made, {})
    info = PromptInfo(
        digest="0" * 64, form=form, template=template_digest(made), system_before_user=folds, max_new_tokens=9
    )
    return PromptRenderer(info, made, "here")


def chat(content: str = QUESTION, system: str | None = None, **fields: Any) -> PromptForm:
    said = () if system is None else (Message(role="system", content=system),)
    return PromptForm(messages=(*said, Message(role="user", content=content)), **fields)


@pytest.mark.parametrize("question", ["1 + 1?", " 7 + 8? \n", "Question: 1\nAnswer: 2"])
@pytest.mark.parametrize(
    ("form", "template"),
    [
        (PromptForm(text=PLAIN), None),
        (PromptForm(text=PLAIN, examples=EXAMPLES), None),
        (PromptForm(text="{{ question }} Again: {{ question }}\nAnswer:"), None),
        (PromptForm(text="{{ question | upper | truncate(9) }}\nAnswer:"), None),
        (PromptForm(text="{{ question }}\nOne of {{ choices | join(', ') }}:"), None),
        (PromptForm(text="{% for each in choices %}{{ each }}. {% endfor %}{{ question }}"), None),
        (PromptForm(text="{{ question }} {{ letters[: choices | length] }}:"), None),
        *((chat(" {{ question }}\n", "Be brief.", examples=EXAMPLES), each) for each in (GEMMA, LLAMA, THINKING)),
        (chat(), QWEN),
    ],
)
def test_a_prompt_of_the_calibration_is_known(form: PromptForm, template: str | None, question: str) -> None:
    made = renderer(form, template)
    assert made.asks(made.prompt(question, OPTIONS)) is True


def test_another_prompt_is_another() -> None:
    plain = renderer(PromptForm(text=PLAIN, examples=EXAMPLES))
    assert not plain.asks("Question: 4 + 4?\nAnswer:")
    brief, long = (renderer(chat(system=said), QWEN) for said in ("Be brief.", "Explain."))
    assert not brief.asks(long.prompt("4 + 4?"))


def test_it_is_not_told_where_templates_have_more_than_the_question() -> None:
    assert renderer(PromptForm(text="{{ hint | default('') }}{{ question }}")).asks("4 + 4?") is None


def test_a_whole_chat_is_known_where_the_task_adds_nothing() -> None:
    made = renderer(chat(), QWEN)
    turns = [("system", "Be brief."), ("user", "4 + 4?"), ("assistant", "8"), ("user", "And 5 + 5?")]
    assert made.asks(made.render(turns))


@pytest.mark.parametrize("adds", [True, False])
def test_a_start_that_the_tokenizer_adds_may_be_missing(adds: bool) -> None:
    made = renderer(chat(), GEMMA, start="<eos>")
    tokenizer: Any = made._tokenizer
    if adds:
        start = [("<eos>", tokenizer.eos_token_id)]
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<eos> $A", special_tokens=start)
    prompt = made.prompt("4 + 4?")
    assert prompt.startswith("<eos>")
    assert [made.asks(prompt), made.asks(prompt.removeprefix("<eos>"))] == [True, adds]
