"""Tasks: which problems they give, in which prompts, and what they say when something is wrong."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from fsd_calib.tasks import TASKS, Task, load_task
from fsd_calib.tasks.base import Example, pick
from fsd_data.problems import GeneratedProblem, generate, part_of
from fsd_data.tokenizer import build_tokenizer
from fsd_decoding.errors import UsageError
from support.paths import GSM8K

QWEN = (  # the part of Qwen2.5's template that serves plain messages
    "{%- if messages[0]['role'] == 'system' %}"
    "{{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}"
    "{%- else %}{{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}{%- endif %}"
    "{%- for message in messages %}{%- if message.role == 'user' %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}"
    "{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
GEMMA = (  # refuses a system message, writes the start token itself
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}{{ '<start_of_turn>' + message['role'] + '\\n' + message['content'] }}"
    "{{ '<end_of_turn>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
)

Tokenizers = Callable[..., PreTrainedTokenizerFast]


@pytest.fixture(scope="module")
def problems() -> list[GeneratedProblem]:
    return list(islice(generate(7), 40))


@pytest.fixture
def tokenizers(problems: list[GeneratedProblem]) -> Tokenizers:
    """Real little tokenizers; `chat_template` replaces the bundled one, `start` is their start token."""

    def build(chat_template: str | None = None, start: str | None = None) -> PreTrainedTokenizerFast:
        tokenizer = build_tokenizer([p.question for p in problems], vocab_size=300)
        tokenizer.chat_template = chat_template
        if start is not None:
            tokenizer.add_special_tokens({"bos_token": start})
        return tokenizer

    return build


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str | bytes], Path]:
    def to_file(content: str | bytes) -> Path:
        path = tmp_path / "problems.jsonl"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return to_file


def lines(problems: list[GeneratedProblem]) -> str:
    return "".join(json.dumps({"question": p.question, "answer": p.answer}) + "\n" for p in problems)


# --- problems ---------------------------------------------------------------------------------------------


def test_arithmetic_gives_the_generators_held_out_problems() -> None:
    task = load_task("arithmetic", seed=3, limit=50)
    expected = list(islice(generate(3), 50))
    assert [(p.question, p.reference) for p in task.problems] == [(e.question, e.answer) for e in expected]
    assert {part_of(p.question) for p in task.problems} == {"held-out"}
    assert {p.part for p in task.problems} == {None}
    assert task.source == "fsd_data.problems.generate(seed=3)"


def test_arithmetic_has_3000_problems_unless_told() -> None:
    assert len(load_task("arithmetic").problems) == 3000


def test_an_id_is_48_bits_of_the_question_whatever_the_company(
    problems: list[GeneratedProblem], write: Callable[[str], Path]
) -> None:
    whole = load_task("gsm8k", data=write(lines(problems)))
    backwards = load_task("gsm8k", data=write(lines(problems[:5:-1])))
    for problem in (*whole.problems, *backwards.problems):
        assert problem.id == int(hashlib.sha256(problem.question.encode()).hexdigest()[:12], 16)
    assert len({p.id for p in whole.problems}) == len(problems)


def test_fingerprint_covers_questions_references_and_order_but_no_prompt(
    problems: list[GeneratedProblem], write: Callable[[str], Path], tokenizers: Tokenizers
) -> None:
    def fingerprint(chosen: list[GeneratedProblem], **options: Any) -> str:
        return load_task("gsm8k", data=write(lines(chosen)), **options).fingerprint

    first = problems[0]
    altered = [first._replace(answer=first.answer + "0"), *problems[1:]]
    reworded = [first._replace(question=first.question + "!"), *problems[1:]]
    assert fingerprint(problems) == fingerprint(problems, tokenizer=tokenizers(QWEN))
    variants = [problems, altered, reworded, problems[::-1], problems[1:]]
    assert len({fingerprint(variant) for variant in variants}) == len(variants)
    assert re.fullmatch("[0-9a-f]{64}", fingerprint(problems))


def test_a_file_keeps_its_order_and_a_limit_chooses_by_seed(
    problems: list[GeneratedProblem], write: Callable[[str], Path]
) -> None:
    path = write(lines(problems))
    order = [p.question for p in problems]

    def questions(**options: Any) -> list[str]:
        return [p.question for p in load_task("gsm8k", data=path, **options).problems]

    assert questions() == questions(seed=1, limit=99) == order
    chosen = questions(seed=1, limit=20)
    assert len(chosen) == 20
    assert chosen == questions(seed=1, limit=20) == sorted(chosen, key=order.index)
    assert chosen not in (questions(seed=2, limit=20), order[:20])
    assert set(questions(seed=1, limit=10)) < set(chosen)


@settings(deadline=None)
@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 200), st.integers())
def test_two_parts_share_a_limit_in_proportion(tuning: int, certification: int, limit: int, seed: int) -> None:
    examples = [Example(f"t{i}", "#### 1", "tuning") for i in range(tuning)]
    examples += [Example(f"c{i}", "#### 1", "certification") for i in range(certification)]
    chosen = pick(examples, seed, limit)
    assert list(chosen) == [e for e in examples if e in set(chosen)]
    assert len(chosen) == min(limit, len(examples))
    shares = Counter(e.part for e in chosen)
    assert abs(shares["tuning"] - len(chosen) * tuning / len(examples)) <= 1
    assert len(shares) == 2 or limit == 1


def test_generated_problems_pass_through_a_file_unchanged(
    problems: list[GeneratedProblem], write: Callable[[str], Path]
) -> None:
    task = load_task("gsm8k", data=write("\ufeff" + lines(problems).replace("\n", "\r\n\n")))
    assert [(p.question, p.reference) for p in task.problems] == [(p.question, p.answer) for p in problems]
    assert task.source.endswith("problems.jsonl")


@pytest.mark.parametrize(("name", "count"), [("train", 7473), ("test", 1319)])
def test_the_real_gsm8k_loads_whole_and_grades_its_own_answers(name: str, count: int) -> None:
    path = GSM8K / f"{name}.jsonl"
    if not path.exists():
        pytest.skip("GSM8K's files are not beside the checkout")
    task = load_task("gsm8k", data=path)
    assert len({p.id for p in task.problems}) == len(task.problems) == count
    assert all(task.grade(p, p.reference) for p in task.problems)
    assert not any(task.grade(p, f"{p.reference}9") for p in task.problems)
    exemplars = task.problems[0].prompt.split("Question: ")[1:-1]
    assert not any(p.question in exemplar for p in task.problems for exemplar in exemplars)


def test_grade_judges_a_whole_answer() -> None:
    task = load_task("arithmetic", limit=20)
    for problem in task.problems:
        gold = problem.reference.rpartition("#### ")[2]
        assert task.grade(problem, problem.reference)
        assert task.grade(problem, f" So it must be {gold}.0.")
        assert not task.grade(problem, f"{problem.reference}1")
        assert not task.grade(problem, "no number at all")


# --- prompts ----------------------------------------------------------------------------------------------


def test_arithmetic_without_a_tokenizer_is_what_the_bundled_template_renders() -> None:
    bundled = build_tokenizer(["Question: none\nAnswer: 0"], vocab_size=300)
    plain, chat = (load_task("arithmetic", limit=5, tokenizer=t) for t in (None, bundled))
    assert plain.problems == chat.problems
    assert plain.problems[0].prompt == f"Question: {plain.problems[0].question}\nAnswer:"


@pytest.mark.parametrize(("name", "shown"), [("arithmetic", 4), ("gsm8k", 8)])
def test_a_base_model_is_shown_worked_examples(
    name: str,
    shown: int,
    tokenizers: Tokenizers,
    problems: list[GeneratedProblem],
    write: Callable[[str], Path],
) -> None:
    data = write(lines(problems)) if name == "gsm8k" else None
    task = load_task(name, limit=3, data=data, tokenizer=tokenizers())
    problem = task.problems[0]
    *exemplars, last = problem.prompt.split("\n\n")
    assert last == f"Question: {problem.question}\nAnswer:"
    assert len(exemplars) == shown
    for exemplar in exemplars:
        assert re.fullmatch(r"Question: .+\?\nAnswer: (.+\n){2,}#### \d+", exemplar)
        assert _final_result(exemplar) == Decimal(exemplar.rpartition("#### ")[2])
    assert task.stop == ("\nQuestion:",)


def _final_result(exemplar: str) -> Decimal:
    """The last result of the working, every step of which must be right."""
    working = exemplar.partition("\nAnswer: ")[2]
    steps = re.findall(r"([\d.]+) ?([-+*/]) ?([\d.]+) ?= ?\$?(\d+(?:\.\d+)?)", working)
    assert len(steps) >= 2
    for a, op, b, result in steps:
        x, y = Decimal(a), Decimal(b)
        assert {"+": x + y, "-": x - y, "*": x * y, "/": x / y}[op] == Decimal(result), (a, op, b, result)
    return Decimal(steps[-1][3])


def test_arithmetics_worked_examples_are_not_among_its_problems(tokenizers: Tokenizers) -> None:
    prompt = load_task("arithmetic", limit=1, tokenizer=tokenizers()).problems[0].prompt
    asked = re.findall("Question: (.+)\n", prompt)
    assert [part_of(question) for question in asked] == ["train"] * 4 + ["held-out"]


def test_gsm8k_without_a_tokenizer_is_shown_worked_examples(
    problems: list[GeneratedProblem], write: Callable[[str], Path], tokenizers: Tokenizers
) -> None:
    data = write(lines(problems))
    assert load_task("gsm8k", data=data) == load_task("gsm8k", data=data, tokenizer=tokenizers())


def test_a_chat_template_gets_the_instruction_as_system_message(tokenizers: Tokenizers) -> None:
    task = load_task("arithmetic", limit=2, tokenizer=tokenizers(QWEN))
    for problem in task.problems:
        turn = r"<\|im_start\|>{}\n(.*?)<\|im_end\|>\n"
        expected = turn.format("system") + turn.format("user") + r"<\|im_start\|>assistant\n"
        found = re.fullmatch(expected, problem.prompt)
        assert found is not None
        assert "step by step" in found[1]
        assert '"#### N"' in found[1]
        assert found[2] == problem.question
    assert task.stop == ()


def test_a_template_that_refuses_a_system_message_gets_it_before_the_question(tokenizers: Tokenizers) -> None:
    problem = load_task("arithmetic", limit=1, tokenizer=tokenizers(GEMMA)).problems[0]
    found = re.fullmatch(r"<start_of_turn>user\n(.+)\n\n(.+)<end_of_turn>\n<start_of_turn>model\n", problem.prompt)
    assert found is not None
    assert '"#### N"' in found[1]
    assert found[2] == problem.question


def test_a_chat_is_text_just_as_the_template_renders_it(tokenizers: Tokenizers) -> None:
    tokenizer = tokenizers(GEMMA, start="<bos>")
    prompt = load_task("arithmetic", limit=1, tokenizer=tokenizer).problems[0].prompt
    assert prompt.startswith("<bos><start_of_turn>user\n")


def test_a_template_that_can_think_is_told_not_to(tokenizers: Tokenizers) -> None:
    template = "{{ messages[-1].content }}{% if enable_thinking is not false %}<think>{% endif %}"
    assert "<think>" not in load_task("arithmetic", limit=1, tokenizer=tokenizers(template)).problems[0].prompt


def test_a_template_that_refuses_everything_is_an_error(tokenizers: Tokenizers) -> None:
    message = refusal("arithmetic", tokenizer=tokenizers("{{ raise_exception('not for chats') }}"))
    assert "not for chats" in message


# --- errors -----------------------------------------------------------------------------------------------


def refusal(name: str, **options: Any) -> str:
    with pytest.raises(UsageError) as error:
        load_task(name, **options)
    message = str(error.value)
    assert "\n" not in message
    return message


def test_an_unknown_task_lists_the_known() -> None:
    message = refusal("gms8k")
    assert "'gms8k'" in message
    assert all(name in message for name in TASKS)


@pytest.mark.parametrize("limit", [0, -3])
def test_a_limit_below_one_is_refused(limit: int) -> None:
    assert f"limit {limit}" in refusal("arithmetic", limit=limit)


def test_arithmetic_takes_no_file(tmp_path: Path) -> None:
    assert "gsm8k" in refusal("arithmetic", data=tmp_path / "problems.jsonl")


GOOD = b'{"question": "How many?", "answer": "#### 3"}\n'
OTHER = b'{"question": "How much?", "answer": "#### 3"}\n'


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (b" \n\n", "empty"),
        (GOOD + b'{"question": "How many?",\n', "line 2: not JSON"),
        (GOOD + b"[1, 2]\n", "line 2: not a JSON object"),
        (GOOD + b'\n{"question": "How much?"}\n', "line 3: no field 'answer'"),
        (GOOD + b'{"answer": "#### 3"}\n', "line 2: no field 'question'"),
        (b'{"question": "How many?", "answer": 3}\n', "line 1: field 'answer' is 3"),
        (b'{"question": " ", "answer": "#### 3"}\n', "line 1: field 'question' is"),
        (b'{"question": "How many?", "answer": "it is 3"}\n', "line 1: the answer does not end in '#### N'"),
        (b'{"question": "How many?", "answer": "3 ####"}\n', "line 1: the answer does not end in '#### N'"),
        (GOOD + b'{"question": "\xff", "answer": "#### 3"}\n', "line 2: not UTF-8"),
        (GOOD.decode().encode("utf-16"), "line 1: not UTF-8"),
        (GOOD + b'{"question": "\\ud800", "answer": "#### 3"}\n', "line 2: field 'question' holds half"),
        (GOOD + OTHER + GOOD + OTHER, "line 3: repeats the question of line 1"),
        (b"[" * 100_000 + b"\n", "line 1: JSON that cannot be read"),
        (b"9" * 5000 + b"\n", "line 1: JSON that cannot be read"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_its_line(
    content: bytes, said: str, write: Callable[[bytes], Path]
) -> None:
    path = write(content)
    message = refusal("gsm8k", data=path)
    assert str(path) in message
    assert said in message


def test_repeated_lines_are_counted(write: Callable[[bytes], Path]) -> None:
    assert "2 repeated lines" in refusal("gsm8k", data=write(GOOD + OTHER + GOOD + OTHER))


def test_a_missing_file_a_folder_and_an_impossible_name_are_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing.jsonl"
    assert f"{missing}: cannot be read (No such file" in refusal("gsm8k", data=str(missing))
    assert f"{tmp_path}: cannot be read (Is a directory" in refusal("gsm8k", data=tmp_path)
    assert "cannot be read" in refusal("gsm8k", data="a\0b")


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="permissions do not bind this user")
def test_a_file_that_may_not_be_read_is_named(write: Callable[[bytes], Path]) -> None:
    path = write(GOOD)
    path.chmod(0)
    assert "Permission denied" in refusal("gsm8k", data=path)


# --- the hub ----------------------------------------------------------------------------------------------


def run_apart(code: str, tmp_path: Path) -> str:
    """Runs code in a process that has an empty cache and must not use the network; its output."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment |= {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "cache")}
    environment["PYTHONPATH"] = os.pathsep.join(entry for entry in sys.path if entry)
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_hub_out_of_reach_is_said_in_one_line_with_the_way_out(tmp_path: Path) -> None:
    code = """
from fsd_calib.tasks import load_task
from fsd_decoding.errors import UsageError
try:
    load_task("gsm8k", limit=10)
except UsageError as error:
    print(error)
"""
    message = run_apart(code, tmp_path).strip()
    assert "\n" not in message
    assert "openai/gsm8k cannot be loaded" in message
    assert "--data FILE.jsonl" in message


def test_hub_parts_become_tuning_and_certification(tmp_path: Path, problems: list[GeneratedProblem]) -> None:
    """`datasets` prefers a folder of the hub's name: laid out like the hub's, it runs the very same code."""
    pd = pytest.importorskip("pandas")
    folder = tmp_path / "openai" / "gsm8k"
    folder.mkdir(parents=True)
    splits = {"test": problems[:10], "train": problems[10:]}
    front = "---\nconfigs:\n- config_name: main\n  data_files:\n"
    for split, members in splits.items():
        pd.DataFrame(members)[["question", "answer"]].to_parquet(folder / f"{split}.parquet")
        front += f"  - split: {split}\n    path: {split}.parquet\n"
    (folder / "README.md").write_text(front + "---\n")
    code = """
import json
from fsd_calib.tasks import load_task
for limit in (None, 8):
    task = load_task("gsm8k", limit=limit)
    print(json.dumps([task.source, [[p.question, p.reference, p.part] for p in task.problems]]))
"""
    whole, capped = (json.loads(line) for line in run_apart(code, tmp_path).splitlines())
    expected = [[p.question, p.answer, "tuning"] for p in splits["train"]]
    expected += [[p.question, p.answer, "certification"] for p in splits["test"]]
    assert whole == ["openai/gsm8k main (train: tuning, test: certification)", expected]
    assert Counter(part for *_, part in capped[1]) == {"tuning": 6, "certification": 2}


def test_naming_the_tasks_imports_nothing_heavy() -> None:
    code = "import sys, fsd_calib.tasks; print([m for m in sys.argv[1:] if m in sys.modules])"
    heavy = ["torch", "transformers", "datasets", "pandas", "numpy"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    done = subprocess.run([sys.executable, "-c", code, *heavy], env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_a_task_is_a_value() -> None:
    task: Task = load_task("arithmetic", limit=2)
    assert task == load_task("arithmetic", limit=2)
    assert task != load_task("arithmetic", seed=1, limit=2)
    assert (task.max_new_tokens, load_task("arithmetic", limit=1).name) == (160, "arithmetic")
