"""Prompts: chat templates and worked examples."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import Environment
from tokenizers.processors import TemplateProcessing

from fsd_calib.tasks import Task, load_task
from fsd_data.problems import part_of
from fsd_data.tokenizer import build_tokenizer
from fsd_decoding.profile.prompt_form import PromptForm, PromptInfo, literal
from fsd_decoding.profile.rendering import PromptRenderer, render_chat, request_of
from fsd_decoding.text import prompt_tokens
from support.calibration.profiles import profile
from support.calibration.task_files import (
    CLOCK,
    GEMMA,
    LLAMA,
    PROBLEMS,
    QWEN,
    THINKING,
    lines,
    load_refusal,
    tokenizer_of,
    write_file,
)
from support.messages import usage_error


def test_arithmetic_prompts_without_a_tokenizer_match_the_bundled_template() -> None:
    bundled = build_tokenizer(["Question: none\nAnswer: 0"], vocab_size=300)
    plain, chat = (load_task("arithmetic", limit=5, tokenizer=t) for t in (None, bundled))
    assert plain.problems == chat.problems
    assert plain.problems[0].prompt == f"Question: {plain.problems[0].question}\nAnswer:"


@pytest.mark.parametrize(("name", "examples"), [("arithmetic", 4), ("gsm8k", 8)])
def test_a_base_model_gets_worked_examples(name: str, examples: int, tmp_path: Path) -> None:
    data = write_file(tmp_path, lines(PROBLEMS)) if name == "gsm8k" else None
    task = load_task(name, limit=3, data=data, tokenizer=tokenizer_of())
    problem = task.problems[0]
    *exemplars, last = problem.prompt.split("\n\n")
    assert last == f"Question: {problem.question}\nAnswer:"
    assert len(exemplars) == examples
    for exemplar in exemplars:
        assert re.fullmatch(r"Question: .+\?\nAnswer: (.+\n){2,}#### \d+", exemplar)
        assert _final_result(exemplar) == Decimal(exemplar.rpartition("#### ")[2])
    assert task.stop == ("\nQuestion:",)


def _final_result(exemplar: str) -> Decimal:
    """Returns the last result of the working, and checks every step."""
    working = exemplar.partition("\nAnswer: ")[2]
    steps = re.findall(r"([\d.]+) ?([-+*/]) ?([\d.]+) ?= ?\$?(\d+(?:\.\d+)?)", working)
    assert len(steps) >= 2
    for a, op, b, result in steps:
        x, y = Decimal(a), Decimal(b)
        assert {"+": x + y, "-": x - y, "*": x * y, "/": x / y}[op] == Decimal(result), (a, op, b, result)
    return Decimal(steps[-1][3])


def test_arithmetic_examples_are_not_among_its_problems() -> None:
    prompt = load_task("arithmetic", limit=1, tokenizer=tokenizer_of()).problems[0].prompt
    questions = re.findall("Question: (.+)\n", prompt)
    assert [part_of(question) for question in questions] == ["train"] * 4 + ["held-out"]


def test_gsm8k_prompts_without_a_tokenizer_have_worked_examples(tmp_path: Path) -> None:
    data = write_file(tmp_path, lines(PROBLEMS))
    assert load_task("gsm8k", data=data) == load_task("gsm8k", data=data, tokenizer=tokenizer_of())


def test_templates_are_compiled_once_and_not_for_every_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, compiled, compiles = write_file(tmp_path, lines(PROBLEMS)), list[str](), Environment.compile

    def compile(environment: Environment, source: Any, *options: Any, **more: Any) -> Any:
        compiled.append(source)
        return compiles(environment, source, *options, **more)

    monkeypatch.setattr(Environment, "compile", compile)
    assert len(load_task("gsm8k", data=data).problems) > 10
    assert len(compiled) == len(set(compiled))


def test_a_chat_template_gets_the_instruction_as_system_message() -> None:
    task = load_task("arithmetic", limit=2, tokenizer=tokenizer_of(QWEN))
    for problem in task.problems:
        turn = r"<\|im_start\|>{}\n(.*?)<\|im_end\|>\n"
        expected = turn.format("system") + turn.format("user") + r"<\|im_start\|>assistant\n"
        found = re.fullmatch(expected, problem.prompt)
        assert found is not None
        assert "step by step" in found[1]
        assert '"#### N"' in found[1]
        assert found[2] == problem.question
    assert task.stop == ()


def test_a_template_without_system_messages_gets_the_instruction_before_the_question() -> None:
    problem = load_task("arithmetic", limit=1, tokenizer=tokenizer_of(GEMMA)).problems[0]
    found = re.fullmatch(r"<start_of_turn>user\n(.+)\n\n(.+)<end_of_turn>\n<start_of_turn>model\n", problem.prompt)
    assert found is not None
    assert '"#### N"' in found[1]
    assert found[2] == problem.question


def test_a_chat_is_the_text_that_the_template_renders() -> None:
    tokenizer = tokenizer_of(GEMMA, start="<bos>")
    prompt = load_task("arithmetic", limit=1, tokenizer=tokenizer).problems[0].prompt
    assert prompt.startswith("<bos><start_of_turn>user\n")


def test_a_model_thinks_only_where_that_is_asked_for() -> None:
    def prompt(**options: Any) -> str:
        return load_task("arithmetic", limit=1, tokenizer=tokenizer_of(THINKING), **options).problems[0].prompt

    asked = {name: {"enable_thinking": name == "on"} for name in ("on", "off")}
    assert prompt() == prompt(chat_template_kwargs=asked["off"])
    assert prompt() == prompt(chat_template_kwargs=asked["on"]) + "<think>\n\n</think>\n\n"


def test_prompts_are_the_same_every_day() -> None:
    def task(template: str, **options: Any) -> Task:
        return load_task("arithmetic", limit=1, tokenizer=tokenizer_of(template), **options)

    dated = task(LLAMA)
    assert dated.prompt is not None
    assert "Today Date: 26 Jul 2024\n" in dated.problems[0].prompt
    assert dated.prompt.template_arguments == {"enable_thinking": False, "date_string": "26 Jul 2024"}  # a server's too
    followed = profile({"prompt": dated.prompt.model_dump(mode="json")})
    again = load_task(followed, limit=1, tokenizer=tokenizer_of(LLAMA), chat_template_kwargs={"enable_thinking": False})
    assert (again.prompt, again.problems) == (dated.prompt, dated.problems)
    mine = task(LLAMA, chat_template_kwargs={"date_string": "1 May 2020"})
    assert "Today Date: 1 May 2020\n" in mine.problems[0].prompt
    stopped = task(CLOCK)
    assert stopped.problems[0].prompt.startswith("Current date: 2024-07-26 (26)\n")
    assert [each.prompt is not None and each.prompt.clock for each in (dated, mine, stopped)] == [False, False, True]


@pytest.mark.parametrize("name", ["tokenize", "messages", "conversation", "tools", "chat_template", "strftime_now"])
def test_arguments_that_are_not_the_users_are_refused(name: str) -> None:
    message = load_refusal("arithmetic", limit=1, tokenizer=tokenizer_of(QWEN), chat_template_kwargs={name: "x"})
    assert message.startswith(f"chat_template_kwargs has {name!r}, which prompts are rendered with already")


def test_what_follows_the_thought_is_graded_where_the_model_thinks() -> None:
    def task(template: str | None = THINKING, **options: Any) -> Task:
        return load_task("arithmetic", limit=1, tokenizer=tokenizer_of(template), **options)

    thinking: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": True}}
    asked = task(**thinking)
    problem = asked.problems[0]
    wrong = "#### 123456789"
    assert asked.answer_after == "</think>"
    assert asked.grade(problem, f"{wrong} </think>\n{problem.reference}")
    assert not asked.grade(problem, f"{problem.reference} </think>\n{wrong}")
    assert not asked.grade(problem, problem.reference)  # the limit ended the thought
    assert asked.fingerprint != task().fingerprint
    assert [task().answer_after, task(**thinking, answer_after="").answer_after] == [None, None]
    assert task(QWEN, **thinking).answer_after is None  # its template knows nothing of thoughts
    assert task(answer_after="ANSWER").grade(problem, f"{wrong} ANSWER {problem.reference}")


def test_agreement_compares_what_follows_the_thoughts(tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("Why?\n")
    task = load_task("agreement", data=tmp_path / "prompts.txt", answer_after="</think>")
    problem = task.problems[0]
    assert task.grade(problem, "a </think> so", "b </think> so")
    assert not task.grade(problem, "a </think> so", "a </think> no")
    assert not task.grade(problem, "a </think> so", "a so")
    assert [task.grade(problem, "a </think> so"), task.grade(problem, "a so")] == [True, False]


def test_other_prompts_can_be_asked_for() -> None:
    def task(**options: Any) -> Task:
        return load_task("arithmetic", limit=1, tokenizer=tokenizer_of(QWEN), **options)

    assert task(max_new_tokens=4000).max_new_tokens == 4000
    assert "<|im_start|>system\nSay {{ it }}.\n<|im_end|>" in task(system="Say {{ it }}.\n").problems[0].prompt
    assert "step by step" not in task(system="").problems[0].prompt


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"system": "Be brief."}, "system is for chat templates, and the target's tokenizer has none; leave it out"),
        ({"chat_template_kwargs": {}}, "chat_template_kwargs is for chat templates"),
        ({"chat_template_kwargs": "x"}, "chat_template_kwargs is 'x'; it must be names with values"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
    ],
)
def test_options_that_prompts_cannot_have_are_refused(options: dict[str, Any], message: str) -> None:
    assert message in load_refusal("arithmetic", limit=1, tokenizer=tokenizer_of(), **options)


def test_a_template_that_leaves_a_message_out_or_changes_it_is_refused() -> None:
    last = tokenizer_of("{{ messages[-1].content }}")
    message = load_refusal("arithmetic", limit=1, tokenizer=last)
    assert "leaves out or changes the system message 'Solve the problem" in message
    assert "leave the system message out (--system '')" in message
    assert "step by step" not in load_task("arithmetic", limit=1, tokenizer=last, system="").problems[0].prompt
    loud = tokenizer_of(
        "{% for m in messages %}{{ m.content if m.role == 'system' else m.content | upper }}{% endfor %}"
    )
    assert "leaves out or changes the user message" in load_refusal("arithmetic", limit=1, tokenizer=loud)


def test_a_message_that_occurs_within_another_one_alone_is_left_out() -> None:
    last, turns = tokenizer_of("{{ messages[-1].content }}"), [("system", "Add."), ("user", "Add. 1 + 1?")]
    assert "leaves out or changes the system message 'Add.'" in usage_error(lambda: render_chat(last, turns, {}))
    assert render_chat(tokenizer_of(QWEN), turns, {}).count("Add.") == 2


@given(st.text())
def test_a_literal_text_is_rendered_as_it_is(text: str) -> None:
    form = PromptForm(text=literal(text))
    info = PromptInfo(digest="0" * 64, form=form, template=None, max_new_tokens=1)
    assert PromptRenderer(info, None, "here").prompt("?") == text


def test_a_template_that_rejects_user_messages_is_an_error() -> None:
    message = load_refusal("arithmetic", tokenizer=tokenizer_of("{{ raise_exception('not for chats') }}"))
    assert "not for chats" in message


def test_what_a_profile_recorded_is_not_changed() -> None:
    tokenizer = tokenizer_of(THINKING)
    asked = load_task("arithmetic", limit=1, tokenizer=tokenizer, system="Be brief.", answer_after="#")
    assert asked.prompt is not None
    followed = profile({"prompt": asked.prompt.model_dump(mode="json")})
    again = load_task(followed, limit=1, tokenizer=tokenizer, system="Be brief.", chat_template_kwargs={})
    assert (again.problems, again.prompt) == (asked.problems, asked.prompt)
    for name, value in {
        "system": "", "chat_template_kwargs": {"enable_thinking": True}, "max_new_tokens": 9, "answer_after": "",
    }.items():  # fmt: skip
        options: dict[str, Any] = {name: value}
        message = load_refusal(followed, limit=1, tokenizer=tokenizer, **options)
        assert message.startswith(f"{name} is ")
        assert "and the profile's prompts were made with" in message


@pytest.mark.parametrize("adds", [True, False])
def test_whether_the_tokenizer_adds_its_start_to_a_chat_is_recorded(adds: bool) -> None:
    tokenizer = tokenizer_of(THINKING if adds else "<eos>" + THINKING, start="<eos>")
    start = [("<eos>", tokenizer.eos_token_id)]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<eos> $A", special_tokens=start)
    task = load_task("arithmetic", limit=1, tokenizer=tokenizer)
    assert task.prompt is not None
    assert task.prompt.special_tokens == adds
    assert request_of(task.prompt).get("add_special_tokens", False) == adds
    assert prompt_tokens(tokenizer, task.problems[0].prompt)[:2].count(start[0][1]) == 1
