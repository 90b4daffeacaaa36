"""Generated problems, data files, chat templates and tokenizers for tests of tasks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from fsd_calib.tasks import Task, load_task
from fsd_calib.tasks.asking import Asking, WorkedExamples
from fsd_calib.tasks.base import Example, TaskKind
from fsd_calib.tasks.grading.graders import same_number
from fsd_data.problems import GeneratedProblem, generate
from fsd_data.tokenizer import build_tokenizer
from support.messages import usage_error

PROBLEMS = list(islice(generate(7), 40))
QWEN = (  # the part of Qwen2.5's template that serves plain messages
    "{%- if messages[0]['role'] == 'system' %}"
    "{{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}"
    "{%- else %}{{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}{%- endif %}"
    "{%- for message in messages %}{%- if message.role != 'system' %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}"
    "{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)

GEMMA = (  # rejects system messages, and writes the start token itself
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}{{ '<start_of_turn>' + message['role'] + '\\n' + message['content'] }}"
    "{{ '<end_of_turn>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
)
LLAMA = (  # as Llama 3's: the day is an argument, or else the clock's
    "{% if not date_string is defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}"
    "{% if messages[0].role == 'system' %}{% set said = messages[0].content | trim %}{% set messages = messages[1:] %}"
    "{% else %}{% set said = '' %}{% endif %}"
    "{{ '<|start|>system<|end|>Today Date: ' + date_string + '\n\n' + said + '<|eot|>' }}"
    "{% for message in messages %}{{ '<|start|>' + message.role + '<|end|>' + message.content | trim + '<|eot|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant<|end|>' }}{% endif %}"
)
CLOCK = "Current date: {{ strftime_now('%Y-%m-%d (%-d)') }}\n" + LLAMA.partition("<|eot|>' }}")[2]  # as gpt-oss'
THINKING = (  # as Qwen3's: an empty thought where the model is told not to think
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}"
    "{%- endif %}{%- endif %}"
)


def tokenizer_of(chat_template: str | None = None, start: str | None = None) -> PreTrainedTokenizerFast:
    """Returns a small tokenizer with this template and start token."""
    tokenizer = build_tokenizer([p.question for p in PROBLEMS], vocab_size=300)
    tokenizer.chat_template = chat_template
    if start is not None:
        tokenizer.add_special_tokens({"bos_token": start})
    return tokenizer


def task_of(examples: Sequence[Example]) -> Task:
    """Returns a task of these examples, whose answers end in numbers."""
    kind = TaskKind("one", lambda *_: (examples, "here"), WorkedExamples(lambda _: ()), 8, same_number)
    return kind.load(0, None, None, Asking())


def write_file(folder: Path, content: str | bytes) -> Path:
    """Writes a data file of problems."""
    path = folder / "problems.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def lines(problems: Iterable[GeneratedProblem]) -> str:
    """Returns the problems as lines of a data file."""
    return "".join(json.dumps({"question": p.question, "answer": p.answer}) + "\n" for p in problems)


def load_refusal(name: Any, **options: Any) -> str:
    """Returns the message with which loading a task is refused."""
    return usage_error(lambda: load_task(name, **options))
