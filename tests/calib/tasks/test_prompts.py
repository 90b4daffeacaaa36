"""Prompts: chat templates and worked examples."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path

import pytest

from fsd_calib.tasks import load_task
from fsd_data.problems import part_of
from fsd_data.tokenizer import build_tokenizer
from support.calibration.task_files import PROBLEMS, QWEN, lines, load_refusal, tokenizer_of, write_file

GEMMA = (  # rejects system messages, and writes the start token itself
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}{{ '<start_of_turn>' + message['role'] + '\\n' + message['content'] }}"
    "{{ '<end_of_turn>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
)


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


def test_thinking_is_disabled_in_templates_that_support_it() -> None:
    template = "{{ messages[-1].content }}{% if enable_thinking is not false %}<think>{% endif %}"
    assert "<think>" not in load_task("arithmetic", limit=1, tokenizer=tokenizer_of(template)).problems[0].prompt


def test_a_template_that_rejects_user_messages_is_an_error() -> None:
    message = load_refusal("arithmetic", tokenizer=tokenizer_of("{{ raise_exception('not for chats') }}"))
    assert "not for chats" in message
