"""Tasks of lm-evaluation-harness: prompts, grades, parts and ids are lm-eval's own, and other tasks are refused."""

from __future__ import annotations

import json
import pickle
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from lm_eval.tasks import TaskManager

from fsd_calib.tasks import Task, load_task
from fsd_calib.tasks import harness as source
from fsd_calib.tasks.harness import chat_renderer
from support.calibration.harness_tasks import EXACT_MATCH, problems, write_rows, write_task
from support.calibration.task_files import QWEN, load_refusal, tokenizer_of

SHOTS = {"num_fewshot": 2, "fewshot_split": "train"}


def own_prompts(path: Path, chats: bool) -> list[str]:
    """The prompts that `lm_eval` itself asks, of the evaluated documents in order."""
    (task,) = TaskManager(include_defaults=False).load([str(path)])["tasks"].values()
    task.set_fewshot_seed(1234)
    render = chat_renderer(tokenizer_of(QWEN), {}) if chats else None
    task.build_all_requests(apply_chat_template=chats, fewshot_as_multiturn=chats, chat_template=render)
    return [instance.args[0] for instance in task.instances]


def refusal(folder: Path, changes: dict[str, Any], **options: Any) -> str:
    return load_refusal(f"lm-eval:{write_task(folder, changes=changes)}", **options)


@pytest.mark.thinned(every=2)
@pytest.mark.parametrize("chats", [False, True])
def test_prompts_are_those_of_lm_eval_whatever_the_limit(tmp_path: Path, chats: bool) -> None:
    path = write_task(tmp_path, count=6, train=5, changes={**SHOTS, "description": "Solve it.\n\n"})
    tokenizer = tokenizer_of(QWEN if chats else None)
    whole = load_task(f"lm-eval:{path}", tokenizer=tokenizer)
    certified = [problem.prompt for problem in whole.problems if problem.part == "certification"]
    assert certified == own_prompts(path, chats)
    assert certified[0].count("<|im_start|>assistant") == (3 if chats else 0)  # worked examples are turns
    some = load_task(f"lm-eval:{path}", seed=3, limit=6, tokenizer=tokenizer)
    assert set(some.problems) < set(whole.problems)


@pytest.mark.slow
def test_training_documents_are_for_tuning_without_their_own_answers_in_prompts(tmp_path: Path) -> None:
    task = load_task(f"lm-eval:{write_task(tmp_path, count=3, train=3, changes=SHOTS)}")
    rows = problems(6)
    parts = {problem.question: problem.part for problem in task.problems}
    assert parts == {row.question: "tuning" if row in rows[:3] else "certification" for row in rows}
    assert all(problem.prompt.count(problem.question) == 1 for problem in task.problems)
    assert all(problem.reference not in problem.prompt for problem in task.problems)
    alone = load_task(f"lm-eval:{write_task(tmp_path, count=3)}")
    assert {problem.part for problem in alone.problems} == {None}


def test_what_ends_an_answer_and_what_it_is_worth_come_from_the_file(tmp_path: Path) -> None:
    task = load_task(f"lm-eval:{write_task(tmp_path)}")
    assert (task.stop, task.max_new_tokens) == (("\nQuestion:",), 120)
    assert f"lm_eval {version('lm-eval')}" in task.source
    assert "exact_match after strict-match" in task.source
    again: Task = pickle.loads(pickle.dumps(task))
    assert again.fingerprint == task.fingerprint
    for problem in again.problems:
        number = problem.reference.rpartition("#### ")[2]
        assert again.grade(problem, problem.reference)
        assert not again.grade(problem, f"{problem.reference}1")
        assert not again.grade(problem, f"It is {number}")
        assert not again.grade(problem, "")


@pytest.mark.slow
def test_a_comma_chooses_other_filters(tmp_path: Path) -> None:
    path = write_task(tmp_path)
    task = load_task(f"lm-eval:{path},last-number")
    assert task.name == f"lm-eval:{path},last-number"
    number = task.problems[0].reference.rpartition("#### ")[2]
    assert task.grade(task.problems[0], f"It is {number}")
    assert "strict-match, last-number" in load_refusal(f"lm-eval:{path},first-number")


def test_a_copy_of_a_file_and_other_data_are_one_claim(tmp_path: Path) -> None:
    path = write_task(tmp_path)
    claim = load_task(f"lm-eval:{path}").claim
    copy = path.rename(tmp_path / "february.yaml")
    for name in (copy, f"{copy},strict-match"):
        assert load_task(f"lm-eval:{name}").claim == claim
    assert load_task(f"lm-eval:{copy}", data=tmp_path / "test.jsonl").claim == claim
    other = write_task(tmp_path, changes={"doc_to_text": "{{question}}!"})
    assert len({claim, load_task(f"lm-eval:{copy},last-number").claim, load_task(f"lm-eval:{other}").claim}) == 3


@pytest.mark.slow
def test_gsm8k_of_lm_eval_takes_its_documents_from_a_file(tmp_path: Path) -> None:
    rows = problems(12)
    task = load_task("lm-eval:gsm8k", data=write_rows(tmp_path / "problems.jsonl", rows))
    assert [problem.reference for problem in task.problems] == [row.answer for row in rows]
    assert all(task.grade(problem, problem.reference) for problem in task.problems)
    assert task.stop == ("Question:", "</s>", "<|im_end|>")
    for problem, row in zip(task.problems, rows, strict=True):
        assert problem.prompt.count("Question: ") == 6
        assert problem.prompt.count(row.question) == 1
        assert row.answer not in problem.prompt


@pytest.mark.slow
def test_a_question_that_repeats_is_one_problem_with_one_prompt(tmp_path: Path) -> None:
    path = write_task(tmp_path, count=5, changes={"num_fewshot": 2, "fewshot_split": "test"})
    data = tmp_path / "test.jsonl"
    lines = data.read_text(encoding="utf-8").splitlines()
    data.write_text("\n".join([*lines, json.dumps({**json.loads(lines[1]), "answer": "#### 7"})]), encoding="utf-8")
    task = load_task(f"lm-eval:{path}")
    first, last = task.problems[1], task.problems[-1]
    assert (first.id, first.prompt) == (last.id, last.prompt)
    assert task.grade(last, "#### 7")
    assert not task.grade(first, "#### 7")


@pytest.mark.slow
def test_sampling_is_left_to_the_command_line_and_the_source_says_so(tmp_path: Path) -> None:
    path = write_task(tmp_path, changes={"generation_kwargs": {"until": [], "temperature": 0.6}})
    task = load_task(f"lm-eval:{path}")
    assert (task.stop, task.max_new_tokens) == ((), 256)
    assert "asks for temperature 0.6, which the run's own replaces" in task.source


@pytest.mark.slow
def test_of_several_metrics_the_first_that_is_right_or_wrong_counts(tmp_path: Path) -> None:
    bleu = {"metric": "bleu", "aggregation": "bleu", "higher_is_better": True}
    task = load_task(f"lm-eval:{write_task(tmp_path, changes={'metric_list': [bleu, EXACT_MATCH]})}")
    assert "exact_match after strict-match" in task.source
    message = refusal(tmp_path, {"metric_list": [bleu]})
    assert "its metrics (bleu) give a document another value than 0 (wrong) or 1 (right)" in message


CHOICE = {"doc_to_choice": ["1", "2"], "doc_to_target": 0, "metric_list": None, "filter_list": None}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"output_type": "multiple_choice", **CHOICE}, "output type is multiple_choice"),
        ({"output_type": "loglikelihood", "metric_list": None}, "output type is loglikelihood"),
        ({"repeats": 4}, "`repeats: 1`"),
        ({"unsafe_code": True}, "its grading runs code that the model writes"),
        ({"doc_to_image": "picture"}, "images"),
        ({"task": ["gsm8k"], "group": "several"}, "a group"),
        ({"num_fewshot": 9, "fewshot_split": "test"}, "a prompt cannot be made"),
        ({"test_split": "valid"}, "lm-eval cannot load it"),
    ],
)
def test_what_no_calibration_can_decode_or_grade_is_refused(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    assert reason in refusal(tmp_path, changes)


def test_what_is_not_there_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "lm-eval:gsm8k" in load_refusal("lm-eval")
    assert "no single task of the name 'gsm9k'" in load_refusal("lm-eval:gsm9k")
    assert "there is no file" in load_refusal(f"lm-eval:{tmp_path / 'none.yaml'}")
    assert "there is no such file" in refusal(tmp_path, {}, data=tmp_path / "none.jsonl")
    (tmp_path / "problems.txt").touch()
    assert "'.txt'" in refusal(tmp_path, {}, data=tmp_path / "problems.txt")
    monkeypatch.setattr(source, "find_spec", lambda name: None)
    assert "pip install 'lm-eval>=0.4.13'" in load_refusal("lm-eval:gsm8k")
