"""The tasks gsm8k, csqa, mmlu and math: their sources, the hub among them, prompts and grades."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fsd_calib.tasks import Problem, Task, load_task
from fsd_calib.tasks.checking import faults
from fsd_calib.tasks.grading.graders import contains, extracting, same_expression, same_text, similarity
from fsd_data.problems import GeneratedProblem
from support.calibration.task_files import PROBLEMS, QWEN, load_refusal, tokenizer_of
from support.hub_server import running_hub
from support.paths import BENCHMARK_FILES

_FILE = Path(__file__).with_suffix(".jsonl")

MATH_PROBLEMS: list[dict[str, Any]] = [json.loads(line) for line in _FILE.read_text(encoding="utf-8").splitlines()]


OPTIONS = ["bank", "library", "mall", "park", "zoo"]
CSQA_ORIGINAL = [
    {"id": str(i), "answerKey": "ABCDE"[i % 5], "question": {
        "question_concept": "place", "stem": f"Where is thing {i}?",
        "choices": [{"label": label, "text": text} for label, text in zip("ABCDE", OPTIONS, strict=True)]}}
    for i in range(12)
]  # fmt: skip
CSQA_HUB = [
    {"id": row["id"], "question": row["question"]["stem"], "question_concept": "place", "answerKey": row["answerKey"],  # type: ignore[index]
     "choices": {"label": list("ABCDE"), "text": OPTIONS}}
    for row in CSQA_ORIGINAL
]  # fmt: skip


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_csqa_reads_the_original_form_and_the_hub_s_columns_alike(tmp_path: Path) -> None:
    one = load_task("csqa", data=write(tmp_path / "original.jsonl", CSQA_ORIGINAL))
    other = load_task("csqa", data=write(tmp_path / "hub.jsonl", CSQA_HUB))
    assert one.problems == other.problems
    assert one.problems[1].question == "Where is thing 1?\n(A) bank\n(B) library\n(C) mall\n(D) park\n(E) zoo"
    assert (one.problems[1].reference, one.problems[1].choices) == ("The answer is (B).", tuple(OPTIONS))
    assert list(faults(one)) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"answerKey": "F"}, 'the answer is "F"; it must be one of A, B, C, D, E'),
        ({"answerKey": ""}, 'the answer is ""; it must be one of A, B, C, D, E'),
        ({"question": {"stem": " ", "choices": []}}, "column 'stem' is \" \"; it must be a text"),
        ({"question": {"stem": "x", "choices": "ab"}}, "they must be texts, or each a label and a text"),
        ({"question": {"stem": "x", "choices": [{"text": "a"}]}}, "there must be 2 to 10, none empty"),
        ({"question": {"stem": "x", "choices": [{"text": "a"}, {"text": " "}]}}, "there must be 2 to 10, none empty"),
    ],
)
def test_a_row_of_csqa_that_cannot_be_asked_is_named(change: dict[str, Any], expected: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [CSQA_ORIGINAL[0], {**CSQA_ORIGINAL[1], **change}])
    message = load_refusal("csqa", data=path)
    assert f"{path}, line 2: " in message
    assert expected in message


def test_the_labels_of_a_source_say_which_option_is_right(tmp_path: Path) -> None:
    turned = {"label": ["C", "A", "B"], "text": ["x", "y", "z"]}
    row = {"question": "Which?", "answerKey": "A", "choices": turned}
    (problem,) = load_task("csqa", data=write(tmp_path / "a.jsonl", [row])).problems
    assert problem.reference == "The answer is (B)."
    (problem,) = load_task("csqa", data=write(tmp_path / "b.jsonl", [{**row, "choices": ["x", "y", "z"]}])).problems
    assert problem.reference == "The answer is (A)."


def mmlu_folder(folder: Path, header: bool) -> Path:
    for subject, count in (("astronomy", 30), ("us_history", 10)):
        with (folder / f"{subject}_test.csv").open("w", newline="") as file:
            out = csv.writer(file)
            if header:
                out.writerow(["question", "choice0", "choice1", "choice2", "choice3", "answer"])
            for i in range(count):
                out.writerow([f'What, "{i}" of {subject}?', "w", "x", "y", "z", i % 4 if header else "ABCD"[i % 4]])
    return folder


@pytest.mark.parametrize("header", [True, False])
def test_mmlu_reads_a_folder_of_subjects(header: bool, tmp_path: Path) -> None:
    task = load_task("mmlu", data=mmlu_folder(tmp_path, header))
    assert len(task.problems) == 40
    assert task.problems[1].question == 'What, "1" of astronomy?\n(A) w\n(B) x\n(C) y\n(D) z'
    assert task.problems[1].reference == "The answer is (B)."
    assert list(faults(task)) == []


def test_a_limit_takes_every_subject_in_proportion(tmp_path: Path) -> None:
    limited = load_task("mmlu", data=mmlu_folder(tmp_path, True), limit=8)
    assert Counter("astronomy" in problem.question for problem in limited.problems) == {True: 6, False: 2}


def test_subjects_are_chosen_in_the_name(tmp_path: Path) -> None:
    folder = mmlu_folder(tmp_path, True)
    task = load_task("mmlu: US History,us_history", data=folder)
    assert (task.name, len(task.problems)) == ("mmlu:us_history", 10)
    claims = [load_task(f"mmlu:{some}", data=folder).claim for some in ("us_history,astronomy", "astronomy,us_history")]
    assert claims == ["mmlu:astronomy,us_history"] * 2
    message = load_refusal("mmlu:botany", data=folder)
    assert message == "subject 'botany': the problems have none of this name; theirs are astronomy, us_history"
    (empty := tmp_path / "empty").mkdir()
    assert "it has no CSV files" in load_refusal("mmlu", data=empty)


def test_mmlu_reads_the_hub_s_columns(tmp_path: Path) -> None:
    rows = [
        {"question": f"What {i}?", "subject": "anatomy", "choices": ["w", "x", "y", "z"], "answer": i % 4}
        for i in range(8)
    ]
    task = load_task("mmlu:anatomy", data=write(tmp_path / "a.jsonl", rows))
    assert [problem.reference[-3] for problem in task.problems] == list("ABCDABCD")
    bad = write(tmp_path / "b.jsonl", [{**rows[0], "choices": "wxyz"}])
    assert 'the choices are "wxyz"; they must be texts' in load_refusal("mmlu", data=bad)


def test_subjects_of_mmlu_may_be_groups(tmp_path: Path) -> None:
    task = load_task("mmlu", data=mmlu_folder(tmp_path, False), group="subject")
    by_group = {problem.group: "astronomy" in problem.question for problem in task.problems}
    assert sorted(by_group.values()) == [False, True]
    assert all(by_group[problem.group] == ("astronomy" in problem.question) for problem in task.problems)


@pytest.mark.parametrize("name", ["csqa", "mmlu"])
def test_worked_examples_and_instructions_end_in_the_answer_that_is_graded(name: str, tmp_path: Path) -> None:
    data = write(tmp_path / "a.jsonl", CSQA_ORIGINAL) if name == "csqa" else mmlu_folder(tmp_path, True)
    task = load_task(name, data=data)
    *exemplars, last = task.problems[0].prompt.split("\n\n")
    assert last == f"Question: {task.problems[0].question}\nAnswer:"
    assert len(exemplars) == 5
    letters = []
    for exemplar in exemplars:
        found = re.fullmatch(
            r"Question: .+\?\n(?:\([A-E]\) .+\n){4,5}Answer: .+\nThe answer is \(([A-E])\)\.", exemplar
        )
        assert found is not None, exemplar
        letters.append(found[1])
    assert len(set(letters)) >= 4
    assert (task.stop, task.max_new_tokens) == (("\nQuestion:",), 512)
    chat = load_task(name, data=data, tokenizer=tokenizer_of(QWEN)).problems[0].prompt
    assert 'a line that holds only "The answer is (X)."' in chat


def test_the_real_commonsense_qa_grades_its_own_answers() -> None:
    task = real("csqa", "commonsenseqa/dev_rand_split.jsonl", 1221)
    assert list(faults(task)) == []


@pytest.mark.slow
def test_the_real_mmlu_grades_its_own_answers() -> None:
    task = real("mmlu", "mmlu/test", 14042)
    assert list(faults(task)) == []
    assert all(task.grade(p, f"I think so. **Answer:** {p.reference[-3]}") for p in task.problems)


def real(name: str, path: str, count: int) -> Task:
    if not (BENCHMARK_FILES / path).exists():
        pytest.skip(f"{path} is not beside the checkout")
    task = load_task(name, data=BENCHMARK_FILES / path)
    assert len(task.problems) == count
    return task


def math_task(folder: Path) -> Task:
    pytest.importorskip("math_verify", reason="math-verify is not installed (extra 'math')")
    return load_task("math", data=write(folder / "math.jsonl", MATH_PROBLEMS))


@pytest.mark.slow
def test_math_grades_all_its_references_as_right_and_altered_ones_as_wrong(tmp_path: Path) -> None:
    task = math_task(tmp_path)
    assert len(task.problems) == 60
    assert list(faults(task)) == []


@pytest.mark.parametrize(
    ("answer", "right", "wrong"),
    [
        (
            r"\frac{1}{2}",
            [r"So it is \boxed{0.5}.", r"\boxed{\dfrac12}", r"It is $\frac{2}{4}$."],
            [r"\boxed{2}", "none"],
        ),
        ("x^2+1", [r"\boxed{1+x^2}"], [r"\boxed{x^2-1}", r"\boxed{x+1}"]),
        (r"\left( 3, \frac{\pi}{2} \right)", [r"\boxed{(3,\pi/2)}"], [r"\boxed{(\pi/2,3)}"]),
        (r"\text{Evelyn}", [r"\boxed{\text{Evelyn}}"], [r"\boxed{\text{Carla}}"]),
        ("1000", [r"\boxed{1{,}000}", "The answer is 1,000."], [r"\boxed{100}"]),
    ],
)
def test_expressions_are_compared_as_mathematics(
    answer: str, right: list[str], wrong: list[str], tmp_path: Path
) -> None:
    pytest.importorskip("math_verify", reason="math-verify is not installed (extra 'math')")
    task = load_task("math", data=write(tmp_path / "a.jsonl", [{"problem": "What?", "answer": answer}]))
    (problem,) = task.problems
    assert task.grade(problem, problem.reference)
    assert [text for text in right if not task.grade(problem, text)] == []
    assert [text for text in wrong if task.grade(problem, text)] == []


def test_the_last_box_alone_is_compared() -> None:
    pytest.importorskip("math_verify", reason="math-verify is not installed (extra 'math')")
    problem = with_reference(r"Not \boxed{3} but \boxed{4}")
    assert same_expression(problem, r"\boxed{9}, no: \boxed{4}")
    assert not same_expression(problem, r"\boxed{4}, no: \boxed{5}")


def test_expressions_are_compared_in_other_threads() -> None:
    pytest.importorskip("math_verify", reason="math-verify is not installed (extra 'math')")
    texts = [r"\boxed{\frac{7}{14}}", r"\boxed{\frac{7}{15}}"]
    with ThreadPoolExecutor(1) as pool:
        assert list(pool.map(partial(same_expression, with_reference(r"\boxed{0.5}")), texts)) == [True, False]


@pytest.mark.parametrize(
    ("reference", "right", "wrong"),
    [
        ("5", ["It is 5.", "5, I think", "(5)"], ["1.5", "-5", "5.5", "1,5", "15", "x5"]),
        ("-5", ["It is -5."], ["5", "3-5"]),
        ("New  York", ["in new\nyork."], ["New Yorker", "NewYork"]),
        ("caf\u00e9", ["CAFE\u0301"], ["cafe"]),
    ],
)
def test_contains_finds_whole_words_and_numbers(reference: str, right: list[str], wrong: list[str]) -> None:
    problem = with_reference(reference)
    assert [text for text in right if not contains(problem, text)] == []
    assert [text for text in wrong if contains(problem, text)] == []


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("你好世界", "你好世间", 3 / 4),
        ("สวัสดี", "สวัสดา", 5 / 6),
        ("if x:\n    a\nb", "if x:\n    a\n    b", 6 / 7),
        ("a\nb", "a b", 2 / 3),
        ("a  \n b", "a\n b", 1),
        ("안녕 세계", "안녕 세상", 1 / 2),
    ],
)
def test_similarity_counts_characters_of_unspaced_scripts_and_line_breaks(
    one: str, other: str, expected: float
) -> None:
    assert similarity(one, other) == pytest.approx(expected)


def test_a_reference_in_which_the_expression_matches_is_right() -> None:
    grader = extracting(r"Answer: (\w+)", same_text)
    assert grader(with_reference("Answer: no"), "Answer: no")
    assert grader(with_reference("no"), "So. Answer: no")
    assert not grader(with_reference("no"), "so no")


def with_reference(reference: str) -> Problem:
    return Problem(1, "", "", reference, None)


def test_a_problem_of_math_without_an_answer_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"problem": "What?", "solution": "It is 3."}])
    assert "line 1: neither a column 'answer' nor a box in 'solution'" in load_refusal("math", data=path)


def run_in_process(code: str, tmp_path: Path, **changes: str) -> str:
    """Runs code in a process with a cache of its own and no network access, and returns its output."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment |= {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "cache")} | changes
    environment["PYTHONPATH"] = os.pathsep.join(entry for entry in sys.path if entry)
    process = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert process.returncode == 0, process.stderr
    assert "Generating" not in process.stderr  # a bar that `datasets` shows for each split
    return process.stdout


@pytest.mark.slow
def test_an_unreachable_hub_is_reported_with_the_way_out(tmp_path: Path) -> None:
    code = """
from fsd_calib.tasks import load_task
from fsd_common.errors import UsageError
try:
    load_task("gsm8k", limit=10)
except UsageError as error:
    print(error)
"""
    message = run_in_process(code, tmp_path).strip()
    assert "\n" not in message
    assert "openai/gsm8k cannot be loaded" in message
    assert "data takes a local FILE.jsonl" in message


def hub_layout(folder: Path) -> dict[str, list[GeneratedProblem]]:
    """Writes a repository as the hub has it, and returns the problems of its parts."""
    pd = pytest.importorskip("pandas")
    (folder / "main").mkdir(parents=True)
    splits = {"test": PROBLEMS[:10], "train": PROBLEMS[10:]}
    front = "---\nconfigs:\n- config_name: main\n  data_files:\n"
    for split, members in splits.items():
        pd.DataFrame(members)[["question", "answer"]].to_parquet(folder / f"main/{split}-00000-of-00001.parquet")
        front += f"  - split: {split}\n    path: main/{split}-*\n"
    (folder / "README.md").write_text(front + "---\n")
    (folder / "socratic").mkdir()
    (folder / "socratic/train-00000-of-00001.parquet").write_bytes(b"another configuration")
    return splits


LOAD = """
import json
from fsd_calib.tasks import load_task
for limit in (None, 8):
    task = load_task("gsm8k", limit=limit)
    print(json.dumps([task.source, [[p.question, p.reference, p.part] for p in task.problems]]))
"""


def check_parts(output: str, splits: dict[str, list[GeneratedProblem]]) -> None:
    whole, capped = (json.loads(line) for line in output.splitlines())
    expected = [[p.question, p.answer, "tuning"] for p in splits["train"]]
    expected += [[p.question, p.answer, "certification"] for p in splits["test"]]
    assert whole == ["openai/gsm8k main (train: tuning, test: certification)", expected]
    assert Counter(part for *_, part in capped[1]) == {"tuning": 2, "certification": 6}


def test_hub_parts_become_tuning_and_certification(tmp_path: Path) -> None:
    """A local folder of the hub's name is preferred."""
    splits = hub_layout(tmp_path / "openai" / "gsm8k")
    check_parts(run_in_process(LOAD, tmp_path), splits)


@pytest.mark.slow
def test_problems_are_fetched_once(tmp_path: Path) -> None:
    """From the hub, and then from its cache where it does not answer."""
    splits = hub_layout(tmp_path / "repository")
    with running_hub({"openai/gsm8k": tmp_path / "repository"}) as hub:
        check_parts(run_in_process(LOAD, tmp_path, HF_HUB_OFFLINE="0", HF_ENDPOINT=hub.address), splits)
        assert [request for request in hub.requests if "socratic" in request] == []
    check_parts(run_in_process(LOAD, tmp_path, HF_HUB_OFFLINE="0", HF_ENDPOINT=hub.address), splits)
    check_parts(run_in_process(LOAD, tmp_path), splits)
