"""Tasks: their problems, grades and names."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsd_calib.tasks import TASKS, Task, load_task
from fsd_calib.tasks.base import Example, pick
from fsd_data.problems import GeneratedProblem, fresh, part_of
from support.calibration.task_files import PROBLEMS, QWEN, lines, load_refusal, tokenizer_of, write_file
from support.paths import GSM8K


def test_arithmetic_has_the_generators_held_out_problems() -> None:
    task = load_task("arithmetic", seed=3, limit=50)
    expected = list(islice(fresh(3), 50))
    assert [(p.question, p.reference) for p in task.problems] == [(e.question, e.answer) for e in expected]
    assert {part_of(p.question) for p in task.problems} == {"held-out"}
    assert {p.part for p in task.problems} == {None}
    assert task.source == "fsd_data.problems.fresh(seed=3)"


@pytest.mark.slow
def test_arithmetic_has_3000_problems_by_default() -> None:
    assert len(load_task("arithmetic").problems) == 3000


def test_an_id_is_a_48_bit_hash_of_the_question_alone(tmp_path: Path) -> None:
    whole = load_task("gsm8k", data=write_file(tmp_path, lines(PROBLEMS)))
    backwards = load_task("gsm8k", data=write_file(tmp_path, lines(PROBLEMS[:5:-1])))
    for problem in (*whole.problems, *backwards.problems):
        assert problem.id == int(hashlib.sha256(problem.question.encode()).hexdigest()[:12], 16)
    assert len({p.id for p in whole.problems}) == len(PROBLEMS)


def test_the_fingerprint_covers_questions_references_and_order_but_not_prompts(tmp_path: Path) -> None:
    def fingerprint(chosen: list[GeneratedProblem], **options: Any) -> str:
        return load_task("gsm8k", data=write_file(tmp_path, lines(chosen)), **options).fingerprint

    first = PROBLEMS[0]
    altered = [first._replace(answer=first.answer + "0"), *PROBLEMS[1:]]
    reworded = [first._replace(question=first.question + "!"), *PROBLEMS[1:]]
    assert fingerprint(PROBLEMS) == fingerprint(PROBLEMS, tokenizer=tokenizer_of(QWEN))
    variants = [PROBLEMS, altered, reworded, PROBLEMS[::-1], PROBLEMS[1:]]
    assert len({fingerprint(variant) for variant in variants}) == len(variants)
    assert re.fullmatch("[0-9a-f]{64}", fingerprint(PROBLEMS))


def test_a_file_keeps_its_order_and_a_limit_selects_by_seed(tmp_path: Path) -> None:
    path = write_file(tmp_path, lines(PROBLEMS))
    order = [p.question for p in PROBLEMS]

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


def test_generated_problems_survive_a_file_unchanged(tmp_path: Path) -> None:
    task = load_task("gsm8k", data=write_file(tmp_path, "\ufeff" + lines(PROBLEMS).replace("\n", "\r\n\n")))
    assert [(p.question, p.reference) for p in task.problems] == [(p.question, p.answer) for p in PROBLEMS]
    assert task.source.endswith("problems.jsonl")


@pytest.mark.parametrize(("name", "count"), [pytest.param("train", 7473, marks=pytest.mark.slow), ("test", 1319)])
def test_the_real_gsm8k_loads_and_grades_its_own_answers(name: str, count: int) -> None:
    path = GSM8K / f"{name}.jsonl"
    if not path.exists():
        pytest.skip("GSM8K's files are not beside the checkout")
    task = load_task("gsm8k", data=path)
    assert len({p.id for p in task.problems}) == len(task.problems) == count
    assert all(task.grade(p, p.reference) for p in task.problems)
    assert not any(task.grade(p, f"{p.reference}9") for p in task.problems)
    exemplars = task.problems[0].prompt.split("Question: ")[1:-1]
    assert not any(p.question in exemplar for p in task.problems for exemplar in exemplars)


def test_a_whole_answer_is_graded() -> None:
    task = load_task("arithmetic", limit=20)
    for problem in task.problems:
        gold = problem.reference.rpartition("#### ")[2]
        assert task.grade(problem, problem.reference)
        assert task.grade(problem, f" So it must be {gold}.0.")
        assert not task.grade(problem, f"{problem.reference}1")
        assert not task.grade(problem, "no number at all")


def test_an_unknown_task_is_refused_with_the_known_ones() -> None:
    message = load_refusal("gms8k")
    assert "'gms8k'" in message
    assert all(name in message for name in TASKS)


@pytest.mark.parametrize("limit", [0, -3])
def test_a_limit_below_one_is_refused(limit: int) -> None:
    assert f"limit {limit}" in load_refusal("arithmetic", limit=limit)


def test_arithmetic_takes_no_file(tmp_path: Path) -> None:
    assert "gsm8k" in load_refusal("arithmetic", data=tmp_path / "problems.jsonl")


def test_importing_the_tasks_imports_nothing_heavy() -> None:
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
