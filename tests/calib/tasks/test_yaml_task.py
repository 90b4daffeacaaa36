"""A user's own tasks: described in YAML, or rows of a data file; errors name file, key or line, and rule."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from fsd_calib.tasks import Task, load_task
from fsd_calib.tasks.split import parts_of
from support.calibration.task_files import QWEN, load_refusal, tokenizer_of, write_file

CITIES = [
    {"country": "France", "city": "Paris", "continent": "Europe", "options": ["Lyon", "Paris"], "right": "B"},
    {"country": "Kenya", "city": "Nairobi", "continent": "Africa", "options": ["Nairobi", "Mombasa"], "right": "A"},
    {"country": "Peru", "city": "Lima", "continent": "America", "options": ["Lima", "Cusco"], "right": "A"},
]
PLAIN: dict[str, Any] = {
    "data": "cities.jsonl",
    "columns": {"question": "country", "answer": "city"},
    "grader": "exact",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "cities.jsonl").write_text("".join(json.dumps(row) + "\n" for row in CITIES))
    return tmp_path


def described(folder: Path, changes: dict[str, Any] | None = None) -> str:
    path = folder / "capitals.yaml"
    path.write_text(yaml.safe_dump({**PLAIN, **(changes or {})}))
    return str(path)


def loaded(folder: Path, changes: dict[str, Any] | None = None, **options: Any) -> Task:
    return load_task(described(folder, changes), **options)


def test_columns_become_problems(folder: Path) -> None:
    task = loaded(folder)
    assert [(p.question, p.reference) for p in task.problems] == [(row["country"], row["city"]) for row in CITIES]
    assert task.problems[0].prompt == "Question: France\nAnswer:"
    assert (task.stop, task.max_new_tokens, task.source) == (("\nQuestion:",), 512, str(folder / "cities.jsonl"))
    assert all(task.grade(p, f" {p.reference}\n") and not task.grade(p, p.reference + "s") for p in task.problems)


def test_a_description_is_one_claim_wherever_its_file_and_its_data_are(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = loaded(folder).claim
    other = folder / "february"
    other.mkdir()
    (other / "more.jsonl").write_text((folder / "cities.jsonl").read_text() + json.dumps(CITIES[0] | {"country": "F"}))
    monkeypatch.chdir(other)
    same = loaded(other, {"data": "more.jsonl"})
    grouped = PLAIN["columns"] | {"group": "continent"}
    assert same.claim == claim
    for path in ("capitals.yaml", "./capitals.yaml", "../february/capitals.yaml"):
        assert load_task(path).claim == claim
        assert load_task(path).name == path
    assert load_task("capitals.yaml", data=folder / "cities.jsonl").claim == claim
    assert loaded(folder, {"columns": grouped}).claim == claim
    changes: list[dict[str, Any]] = [{"prompt": "{{ question }}?"}, {"grader": "contains"}, {"answer_after": "So"}]
    assert len({claim, *(loaded(folder, change).claim for change in changes)}) == 4


def test_prompts_are_templates_of_all_columns_after_worked_examples(folder: Path) -> None:
    shot = {"country": "Italy", "city": "Rome", "continent": "Europe"}
    prompt = "{{ country|upper }} ({{ continent }}):"
    task = loaded(folder, {"prompt": prompt, "examples": [shot], "stop": ["\n"], "max_new_tokens": 8})
    assert task.problems[1].prompt == "ITALY (Europe): Rome\n\nKENYA (Africa):"
    assert (task.stop, task.max_new_tokens) == (("\n",), 8)


def test_chats_have_messages_and_worked_turns(folder: Path) -> None:
    messages = [
        {"role": "system", "content": "Name capitals of {{ continent }}."},
        {"role": "user", "content": "{{ country }}?"},
    ]
    shot = {"country": "Italy", "city": "Rome", "continent": "Europe"}
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
    task = loaded(folder, {"messages": messages, "examples": [shot]}, tokenizer=tokenizer_of(template))
    assert (
        task.problems[1].prompt == "<system>Name capitals of Africa.<user>Italy?<assistant>Rome<user>Kenya?<assistant>"
    )
    assert task.stop == ()
    simple = loaded(folder, {"instruction": "Be brief."}, tokenizer=tokenizer_of(QWEN)).problems[0].prompt
    assert (
        simple == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nFrance<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(
    ("changes", "right", "wrong"),
    [
        ({"grader": "exact"}, ["Paris", " Paris "], ["paris", "Paris.", ""]),
        ({"grader": "contains"}, ["It is paris, I think.", "PARIS"], ["Parisian", "Lyon", ""]),
        ({"grader": "exact", "extract": r"answer is (\w+)"}, ["The answer is Paris.", "Paris"],
         ["It is Paris", "answer is Lyon"]),
        ({"grader": "exact", "extract": r"\b[A-Z]\w+"}, ["No, not Lyon: Paris"], ["Paris or Lyon"]),
        ({"grader": "edit", "similarity": 0.5}, ["Paris", "in Paris"], ["Lyon", "it must be Paris"]),
        ({"grader": "choice", "columns": {"question": "country", "answer": "right", "choices": "options"}},
         ["The answer is (B).", "B", "Paris"], ["The answer is (A).", "Lyon", "A or B"]),
    ],
)  # fmt: skip
def test_graders(changes: dict[str, Any], right: list[str], wrong: list[str], folder: Path) -> None:
    task = loaded(folder, changes)
    first = task.problems[0]
    assert task.grade(first, first.reference)
    assert [text for text in right if not task.grade(first, text)] == []
    assert [text for text in wrong if task.grade(first, text)] == []


def test_numbers_have_a_tolerance(folder: Path) -> None:
    (folder / "cities.jsonl").write_text('{"country": "France", "city": 200}\n')
    exact, near = loaded(folder, {"grader": "numeric"}), loaded(folder, {"grader": "numeric", "tolerance": 0.01})
    texts = ["200", "it is 202.00", "198", "202.1", "197.9", "no"]
    assert [exact.grade(exact.problems[0], text) for text in texts] == [True, False, False, False, False, False]
    assert [near.grade(near.problems[0], text) for text in texts] == [True, True, True, False, False, False]


@pytest.mark.slow
def test_a_function_grades_and_the_source_says_that_it_runs(folder: Path) -> None:
    (folder / "my_graders.py").write_text("def same(reference, text):\n    return text[0] == reference[0]\n")
    task = loaded(folder, {"grader": "python", "function": "my_graders.same"})
    assert [task.grade(task.problems[0], text) for text in ("Pa", "Lyon")] == [True, False]
    assert task.source.endswith("cities.jsonl, graded by running my_graders.same")
    with pytest.warns(UserWarning, match=r"a text broke its grader \(IndexError: string index out of range\)"):
        assert not task.grade(task.problems[0], "")


def test_a_prompt_is_the_user_s_message_where_nothing_is_written_for_chats(folder: Path) -> None:
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
    prompt = "{{ country }}, in {{ continent }}:"
    task = loaded(folder, {"prompt": prompt}, tokenizer=tokenizer_of(template))
    assert task.problems[0].prompt == "<user>France, in Europe:<assistant>"
    task = loaded(folder, {"instruction": "Use {{braces}}."}, tokenizer=tokenizer_of(template))
    assert task.problems[0].prompt == "<system>Use {{braces}}.<user>France<assistant>"
    strict = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + template
    task = loaded(folder, {"instruction": "Be brief."}, tokenizer=tokenizer_of(strict))
    assert task.problems[0].prompt == "<user>Be brief.\n\nFrance<assistant>"


def test_a_worked_example_is_left_out_of_its_own_prompt(folder: Path) -> None:
    shots = [CITIES[0], {"country": "Italy", "city": "Rome"}]
    first, second, _ = loaded(folder, {"examples": shots}).problems
    assert "Paris" not in first.prompt
    assert "Rome" in first.prompt
    assert "Paris" in second.prompt


@pytest.mark.parametrize(
    ("written", "reference"), [("1e-7", "0.0000001"), ("1e22", "10000000000000000000000"), ("2.50", "2.5")]
)
def test_numbers_as_references_are_in_plain_digits(written: str, reference: str, folder: Path) -> None:
    (folder / "cities.jsonl").write_text(f'{{"country": "France", "city": {written}}}\n')
    task = loaded(folder, {"grader": "numeric"})
    assert task.problems[0].reference == reference
    assert task.grade(task.problems[0], f"The answer is {reference}.")


def test_what_grades_is_told_apart(folder: Path) -> None:
    (folder / "two_graders.py").write_text("def one(reference, text):\n    return True\n")
    ways: list[dict[str, Any]] = [
        {}, {"grader": "contains"}, {"grader": "numeric"}, {"grader": "numeric", "tolerance": 0.5},
        {"extract": "x"}, {"grader": "edit", "similarity": 0.5}, {"grader": "python", "function": "two_graders.one"},
    ]  # fmt: skip
    tasks = [loaded(folder, way) for way in ways]
    assert len({task.grading for task in tasks}) == len({task.fingerprint for task in tasks}) == len(ways)
    assert loaded(folder, {"prompt": "{{ country }}?"}).grading == tasks[0].grading


def test_options_are_shown_and_identify_problems(folder: Path) -> None:
    columns = {"question": "country", "answer": "right", "choices": "options", "subject": "continent"}
    task = loaded(folder, {"grader": "choice", "columns": columns})
    assert task.problems[0].question == "France\n(A) Lyon\n(B) Paris"
    assert task.problems[0].choices == ("Lyon", "Paris")
    assert len(loaded(folder, {"grader": "choice", "columns": columns}, limit=2).problems) == 2


def test_data_replaces_the_file_s_own(folder: Path) -> None:
    rows = [{"country": f"land {i}", "city": f"town {i}"} for i in range(9)]
    (folder / "other.json").write_text(json.dumps(rows))
    task = loaded(folder, data=folder / "other.json")
    assert len(task.problems) == 9
    assert len(parts_of(task).tuning) + len(parts_of(task).certification) == 9


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"promt": "x"}, "key 'promt' is not known; the keys there are data, hub, columns, prompt"),
        ({"columns": {"question": "country", "anwser": "city"}}, "key 'columns.anwser' is not known"),
        ({"grader": "exakt"}, "key 'grader' is 'exakt'; input should be 'exact', 'contains'"),
        ({"grader": None}, "key 'grader' is None"),
        ({"grader": "numeric", "tolerance": float("inf")}, "key 'tolerance' is inf"),
        ({"max_new_tokens": 0}, "key 'max_new_tokens' is 0; input should be greater than or equal to 1"),
        ({"extract": "("}, "key 'extract' is '('; is no regular expression"),
        ({"tolerance": 0.1}, "tolerance is a setting of grader numeric, and the grader is exact"),
        ({"grader": "edit"}, "grader edit needs similarity"),
        ({"grader": "edit", "similarity": 1.5}, "key 'similarity' is 1.5"),
        ({"grader": "python"}, "grader python needs function"),
        ({"grader": "python", "function": "same"}, "key 'function' is 'same'; must be the dotted path"),
        ({"grader": "python", "function": "nowhere.same"}, "function nowhere.same cannot be imported (ModuleNotFound"),
        ({"grader": "choice"}, "grader choice needs the options"),
        ({"hub": {"id": "a/b", "splits": {"test": "problems"}}}, "data and hub are both given"),
        ({"messages": [], "instruction": None}, "key 'messages' is []"),
        ({"prompt": "{{ question"}, "key 'prompt': no Jinja template"),
        ({"prompt": "{{ capital }}"}, "key 'prompt': cannot be rendered ('capital' is undefined); its variables are"),
        ({"prompt": "{{ question.__class__.__mro__ }}"}, "key 'prompt': cannot be rendered"),
        (
            {"columns": {"question": "land", "answer": "city"}},
            "line 1: no column 'land'; its columns are country, city",
        ),
        ({"data": "none.jsonl"}, "none.jsonl: cannot be read"),
        ({"data": None}, "it names no problems; give it data or hub, or give data"),
        ({"examples": [{"country": "Italy"}]}, "key 'examples', example 1: no column 'city'"),
    ],
)
def test_an_error_names_file_key_and_rule(changes: dict[str, Any], expected: str, folder: Path) -> None:
    path = described(folder, changes)
    message = load_refusal(path)
    assert expected in message
    assert str(folder) in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("content", "expected"),
    [("a: [", "line 1: not YAML"), ("", "it holds no keys"), ("- 1", "it holds no keys"),
     ("data: x", "key 'grader' is missing"),
     ("data: x\ndata: y", "line 2: not YAML (key 'data' is written twice)"), ("\xff", "cannot be read")],
)  # fmt: skip
def test_a_file_that_is_no_description_is_refused(content: str, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "my.yaml"
    path.write_text(content, encoding="latin-1")
    assert expected in load_refusal(str(path))
    assert "cannot be read (No such file" in load_refusal(str(tmp_path / "none.yaml"))


GOOD = b'{"question": "How many?", "answer": "#### 3"}\n'
OTHER = b'{"question": "How much?", "answer": "#### 3"}\n'


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "empty"),
        (b" \n\n", "empty"),
        (GOOD + b'{"question": "How many?",\n', "line 2: not JSON"),
        (GOOD + b"[1, 2]\n", "line 2: [1, 2] is not a JSON object"),
        (GOOD + b'\n{"question": "How much?"}\n', "line 3: no column 'answer'"),
        (GOOD + b'{"answer": "#### 3"}\n', "line 2: no column 'question'"),
        (b'{"question": "How many?", "answer": 3}\n', "line 1: column 'answer' is 3"),
        (b'{"question": " ", "answer": "#### 3"}\n', "line 1: column 'question' is"),
        (b'{"question": "How many?", "answer": "it is 3"}\n', "line 1: the answer does not end in '#### N'"),
        (b'{"question": "How many?", "answer": "3 ####"}\n', "line 1: the answer does not end in '#### N'"),
        (GOOD + b'{"question": "\xff", "answer": "#### 3"}\n', "line 2: not UTF-8"),
        (GOOD.decode().encode("utf-16"), "it is UTF-16, and not JSON, CSV or Parquet; save it as UTF-8"),
        (GOOD.decode().encode("utf-32"), "it is UTF-32"),
        (gzip.compress(GOOD, mtime=0)[:-9], "damaged gzip"),
        (bz2.compress(GOOD), "it is bzip2"),
        (lzma.compress(GOOD), "it is xz"),
        (b"\x28\xb5\x2f\xfd" + GOOD, "it is zstd"),
        (b"PK\x03\x04" + GOOD, "it is a zip archive, and not JSON, CSV or Parquet; unpack it first"),
        (b"PAR1" + GOOD, "damaged Parquet"),
        (GOOD + b'{"question": "\\ud800", "answer": "#### 3"}\n', "line 2: column 'question' holds half"),
        (GOOD + OTHER + GOOD + OTHER, "line 3: repeats the question of line 1"),
        (b"[" * 100_000 + b"\n", "line 1: JSON that cannot be read"),
        (b"9" * 5000 + b"\n", "line 1: JSON that cannot be read"),
    ],
)
def test_an_error_in_a_file_is_reported_with_its_line(content: bytes, expected: str, tmp_path: Path) -> None:
    path = write_file(tmp_path, content)
    message = load_refusal("gsm8k", data=path)
    assert str(path) in message
    assert expected in message


ROWS = [{"question": "How many, and why?", "answer": "Because\n#### 3"}, {"question": "How much?", "answer": "#### 4"}]


def _written(folder: Path, name: str) -> Path:
    path, frame = folder / name, pd.DataFrame(ROWS)
    if ".csv" in name or ".tsv" in name:
        frame.to_csv(path, index=False, sep="\t" if ".tsv" in name else ",")
    elif name.endswith(".parquet"):
        frame.to_parquet(path)
    else:
        frame.to_json(path, orient="records", lines=".jsonl" in name, indent=1 if "indented" in name else None)
    return path


@pytest.mark.parametrize(
    "name", ["a.jsonl", "a.json", "indented.json", "a.csv", "a.tsv", "a.parquet", "a.jsonl.gz", "a.json.gz", "a.csv.gz"]
)
def test_one_problem_is_read_from_every_format(name: str, tmp_path: Path) -> None:
    task = load_task("gsm8k", data=_written(tmp_path, name))
    assert [{"question": p.question, "answer": p.reference} for p in task.problems] == ROWS


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.csv", "question,answer\nHow many?,#### 3,4\n", "line 2: 3 columns, where the header has 2"),
        ("a.csv", 'question,answer\n"How many?,#### 3\n', "not CSV"),
        ("a.csv", "question,answer\n", "empty"),
        (
            "a.csv",
            "question,answer,answer\nHow many?,1,2\n",
            'line 1: two columns have the same name, "answer"; rename one',
        ),
        ("a.json", '[{"question": "How many?"}]', "row 1: no column 'answer'; its columns are question"),
        ("a.json", '[{"question": "How many?",\n]', "not JSON"),
        ("a.json", "[]", "empty"),
    ],
)
def test_an_error_in_a_table_or_an_array_is_reported_with_its_row(
    name: str, content: str, expected: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_text(content)
    message = load_refusal("gsm8k", data=path)
    assert str(path) in message
    assert expected in message


def test_repeated_lines_are_counted(tmp_path: Path) -> None:
    assert "2 repeated lines" in load_refusal("gsm8k", data=write_file(tmp_path, GOOD + OTHER + GOOD + OTHER))


def test_a_missing_file_a_folder_and_an_invalid_name_are_refused(tmp_path: Path) -> None:
    missing = tmp_path / "missing.jsonl"
    assert f"{missing}: cannot be read (No such file" in load_refusal("gsm8k", data=str(missing))
    assert f"{tmp_path}: cannot be read (it is not a regular file" in load_refusal("gsm8k", data=tmp_path)
    assert "cannot be read" in load_refusal("gsm8k", data="a\0b")


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="permissions do not bind this user")
def test_a_file_without_read_permission_is_refused(tmp_path: Path) -> None:
    path = write_file(tmp_path, GOOD)
    path.chmod(0)
    assert "Permission denied" in load_refusal("gsm8k", data=path)
