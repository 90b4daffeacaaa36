"""Tasks: their problems, grades and names, the tuning and certification parts, and near-duplicates among them."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsd_calib.tasks import TASKS, Problem, Task, load_task
from fsd_calib.tasks.base import Example, pick
from fsd_calib.tasks.grading.graders import same_number
from fsd_calib.tasks.near_duplicates import BOUND, HELD, held, near_duplicates
from fsd_calib.tasks.split import Parts, parts_of
from fsd_collectors.split import Part, content_key
from fsd_common.errors import UsageError
from fsd_data.problems import GeneratedProblem, fresh, part_of
from support.calibration.task_files import PROBLEMS, QWEN, lines, load_refusal, task_of, tokenizer_of, write_file
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
def test_of_a_limit_a_fifth_tunes_as_far_as_there_are_others(
    tuning: int, certification: int, limit: int, seed: int
) -> None:
    examples = [Example(f"t{i}", "#### 1", "tuning") for i in range(tuning)]
    examples += [Example(f"c{i}", "#### 1", "certification") for i in range(certification)]
    chosen = pick(examples, seed, limit)
    assert list(chosen) == [e for e in examples if e in set(chosen)]
    assert len(chosen) == min(limit, len(examples))
    shares = Counter(e.part for e in chosen)
    is_a_fifth = abs(shares["tuning"] - len(chosen) / 5) <= 1
    are_all = shares["tuning"] == tuning or shares["certification"] == certification
    if len(chosen) / 5 < tuning - 1 and 4 * len(chosen) / 5 < certification - 1:
        assert is_a_fifth
    else:
        assert is_a_fifth or are_all or len(chosen) <= 6
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


WORDS = st.lists(st.sampled_from(["née", "2³", "23", "Zoé", "how", "How", "many", "Å", "?"]), min_size=1, max_size=5)


def task(*examples: Example) -> Task:
    return task_of(examples)


def examples_of(*questions: str, part: Part | None = None) -> list[Example]:
    return [Example(question, "#### 1", part) for question in questions]


ENOUGH = examples_of(*(f"How many are {i}?" for i in range(20)))  # so many that both parts have some


def contents(parts: Parts) -> list[list[str]]:
    return [[content_key(p.question, p.choices) for p in part] for part in (parts.tuning, parts.certification)]


def refusal(*examples: Example) -> str:
    with pytest.raises(UsageError) as error:
        parts_of(task(*examples))
    assert "\n" not in str(error.value)
    return str(error.value)


# --- division into parts ---------------------------------------------------------------------------------------


@settings(max_examples=50)
@given(st.lists(WORDS, unique_by=lambda words: " ".join(words)), st.randoms(use_true_random=False))
def test_parts_do_not_depend_on_order_spaces_or_composition(questions: list[list[str]], random: Random) -> None:
    original, other = (examples_of(*map(" ".join, questions)), [_reworked(words, random) for words in questions])
    random.shuffle(other)
    assert contents(parts_of(task(*ENOUGH, *original))) == contents(parts_of(task(*examples_of(*other), *ENOUGH)))


def _reworked(words: list[str], random: Random) -> str:
    spaced = "".join(word + random.choice([" ", "  ", "\n", "\xa0 "]) for word in words)
    return unicodedata.normalize(random.choice(["NFC", "NFD"]), spaced)


def test_groups_that_the_source_tears_apart_are_on_one_side() -> None:
    sides: tuple[Part, ...] = ("tuning", "certification")
    rows = [{"question": f"How many are {i}?", "answer": "#### 1", "about": i // 4} for i in range(200)]
    examples = [Example(str(r["question"]), "#### 1", sides[i % 2], source=r) for i, r in enumerate(rows)]
    parts = parts_of(task_of(examples).grouped_by("about"))
    assert sum(map(len, parts[:2])) == 200
    assert not {problem.group for problem in parts.tuning} & {problem.group for problem in parts.certification}
    assert any("50 groups have problems in both parts of the source" in note for note in parts.notes)
    torn = [replace(each, part=sides[i % 2] if i < 4 else "tuning") for i, each in enumerate(examples)]
    ends = [Example(f"What is {i}?", "#### 1", "certification", source={"about": f"end {i}"}) for i in range(9)]
    mostly = parts_of(task_of([*torn, *ends]).grouped_by("about"))  # only the torn group may be on another side
    assert (len(mostly.tuning), len(mostly.certification)) in ((128, 9), (128, 13))
    assert {p.question for p in ends} <= {p.question for p in mostly.certification}
    whole = [replace(each, part=sides[i // 4 % 2]) for i, each in enumerate(examples)]  # which keeps them together
    kept = parts_of(task_of(whole).grouped_by("about"))
    assert (len(kept.tuning), len(kept.certification)) == (100, 100)


@pytest.mark.parametrize("empty", [{"about": None}, {"about": float("nan")}, {"about": " "}, {}])
def test_what_names_no_group_is_alone(empty: dict[str, Any]) -> None:
    sources = [{"about": i // 4} if i < 20 else empty for i in range(40)]
    examples = [Example(f"How many are {i}?", "#### 1", source=source) for i, source in enumerate(sources)]
    grouped = task_of(examples).grouped_by("about")
    assert Counter(problem.group for problem in grouped.problems)[None] == 20
    assert "20 of 40 problems are in no group: each counts by itself" in parts_of(grouped).notes
    with pytest.raises(UsageError, match="no problem has anything in a column of that name"):
        task_of(examples[20:]).grouped_by("about")


def test_a_group_has_one_name_however_it_is_written() -> None:
    def groups(*names: object) -> int:
        examples = [Example(f"{i}?", "#### 1", source={"about": name}) for i, name in enumerate(names)]
        return len({problem.group for problem in task_of(examples).grouped_by("about").problems})

    assert groups(1, 1.0, "1", "1.0 ", "1e0") == groups("doc 1", "doc 1 ", "doc  1") == 1
    assert groups(1, 2, 10, 1.5, "doc 1", "01", True, [1]) == 8


def test_a_row_is_the_same_in_every_format(tmp_path: Path) -> None:
    rows = [{"question": f"How many are {i}?", "answer": "#### 1", "page": i, "seen": None} for i in range(20)]
    tables = [[*row.values()] for row in rows]
    files = {
        "a.jsonl": "".join(json.dumps(row) + "\n" for row in rows),
        "b.jsonl": "".join(json.dumps({k: v for k, v in row.items() if v is not None}) + "\n" for row in rows),
        "c.json": json.dumps([row | {"page": float(i), "seen": float("nan")} for i, row in enumerate(rows)]),
        "d.csv": "question,answer,page,seen\n" + "".join(f"{q},{a},{page},\n" for q, a, page, _ in tables),
    }
    (tmp_path / "task.yaml").write_text("grader: exact\nmax_new_tokens: 5\nprompt: '{{ question }}'\n")
    keys = set()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        task = load_task(str(tmp_path / "task.yaml"), data=tmp_path / name)
        keys.add(tuple(problem.row_key for problem in task.problems))
    assert len(keys) == 1
    assert len(set(*keys)) == 20


def test_a_trailing_space_leaves_every_problem_in_its_part() -> None:
    """A regression: 72 of 215 certification problems of a file had been tuned on before spaces were added."""
    plain, spaced = (
        parts_of(task(*examples_of(*(f"How many are {i}?{end}" for i in range(300))))) for end in ("", " ")
    )
    assert contents(plain) == contents(spaced)


def test_a_prefix_of_the_tuning_part_is_a_random_sample_of_a_sorted_file() -> None:
    """5 to 27 of 32 draws are of one half, each with probability .5: false alarms have probability 2e-4."""
    examples = examples_of(
        *(f"Which animal is {i}?" for i in range(200)), *(f"Which plant is {i}?" for i in range(200))
    )
    parts = parts_of(task(*examples))
    for part in (parts.tuning, parts.certification):
        animals = sum("animal" in problem.question for problem in part[:32])
        assert 5 <= animals <= 27
    shuffled = Random(0).sample(examples, len(examples))
    assert parts_of(task(*shuffled)) == parts


@pytest.mark.parametrize("name", [pytest.param("train", marks=pytest.mark.slow), "test"])
def test_the_real_gsm8k_has_the_same_parts_when_shuffled_and_padded(name: str, tmp_path: Path) -> None:
    path = GSM8K / f"{name}.jsonl"
    if not path.exists():
        pytest.skip("GSM8K's files are not beside the checkout")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    random, other = Random(0), tmp_path / "other.jsonl"
    padded = [row | {"question": row["question"].replace(" ", random.choice([" ", "  ", " \t"]))} for row in rows]
    random.shuffle(padded)
    other.write_text("".join(json.dumps(row) + "\n" for row in padded))
    plain, changed = (parts_of(load_task("gsm8k", data=data)) for data in (path, other))
    assert contents(plain) == contents(changed)
    assert len(plain.tuning) == min(1000, len(rows) - len(plain.certification))


def test_problems_with_other_choices_are_other_problems() -> None:
    with_choices = [Example("Which?", "A", None, choices) for choices in [("a", "b"), ("b", "a"), ("a b",)]]
    parts = parts_of(task(*ENOUGH, *with_choices))
    assert len(parts.tuning) + len(parts.certification) == len(ENOUGH) + 3


# --- repeated problems -----------------------------------------------------------------------------------


def test_repeated_problems_count_once_with_a_note() -> None:
    repeats = examples_of("How  many are 3?", "How many are 3? ", "How many are 4?")
    whole = [*ENOUGH, *repeats]
    both = [parts_of(task(*examples)) for examples in (whole, whole[::-1])]
    assert both[0] == both[1]
    assert contents(both[0]) == contents(parts_of(task(*ENOUGH)))
    same = {p.id for p in task(*whole).problems if content_key(p.question) == "How many are 3?"}
    assert len(same) == 3
    assert same & {p.id for part in (both[0].tuning, both[0].certification) for p in part} == {min(same)}
    assert [note for note in both[0].notes if "3 of 23 problems" in note]
    assert not parts_of(task(*ENOUGH)).notes


def test_references_with_the_same_answer_do_not_contradict() -> None:
    again = Example("How many are  3?", "Let me see. #### 1.0")
    assert "1 of 21 problems" in parts_of(task(*ENOUGH, again)).notes[0]


def test_problems_with_contradicting_answers_are_refused() -> None:
    examples = [*ENOUGH, Example("How many are  3?", "Surely\n#### 2")]
    message = refusal(*examples)
    ids = [str(p.id) for p in task(*examples).problems if content_key(p.question) == "How many are 3?"]
    assert len(ids) == 2
    assert all(part_of_message in message for part_of_message in [*ids, "'How many are 3?'", "#### 2", "#### 1"])


def own(*problems: Problem) -> Task:
    return Task("own", problems, 8, (), "a program", same_number)


def numbered(count: int) -> list[Problem]:
    return [Problem(i, f"How many are {i}?", f"{i}", "1", None) for i in range(count)]


@pytest.mark.parametrize("change", [{"question": "How few?"}, {"prompt": "other"}, {"choices": ("a", "b")}])
def test_an_id_of_two_problems_is_refused(change: dict[str, Any]) -> None:
    problems = numbered(20)
    facts: dict[str, Any] = {
        "id": 3,
        "question": "How many are 3?",
        "prompt": "3",
        "reference": "1",
        "part": None,
    } | change
    with pytest.raises(UsageError, match=r"id 3 .*give each problem an id of its own") as error:
        parts_of(own(*problems, Problem(**facts)))
    assert "\n" not in str(error.value)


def test_the_same_problem_twice_counts_once() -> None:
    problems = numbered(20)
    parts = parts_of(own(*problems, problems[3]))
    assert len(parts.tuning) + len(parts.certification) == 20
    assert "1 of 21 problems" in parts.notes[0]


# --- parts of the source --------------------------------------------------------------------------------


def given_parts(tuning: Sequence[str], certification: Sequence[str]) -> list[Example]:
    return [*examples_of(*tuning, part="tuning"), *examples_of(*certification, part="certification")]


def test_a_problem_in_both_parts_of_the_source_is_refused() -> None:
    message = refusal(*given_parts(["How many?", "How few?"], ["Why?", "How  many? "]))
    assert "1 question" in message
    assert "'How many?'" in message
    assert "leave" in message


@pytest.mark.parametrize("part", ["tuning", "certification"])
def test_a_given_part_applies_to_all_problems_of_the_same_content(part: Part) -> None:
    """Whatever the hash says, and whichever of them is kept."""
    named = [Example(f" {example.question}", example.answer, part) for example in ENOUGH]
    fill = examples_of("What?", "Why?", part="tuning") + examples_of("When?", "Who?", part="certification")
    parts = parts_of(task(*fill, *ENOUGH, *named))
    assert len(getattr(parts, part)) == 22


def test_too_few_problems_are_refused() -> None:
    assert "leave 1 for certification" in refusal(*given_parts(["How many?", "How few?"], ["Why?"]))
    assert "leave 1 for tuning" in refusal(*given_parts(["Why?", "Why? "], ["How many?", "How few?"]))


@pytest.mark.parametrize(("certification", "tuning"), [(2, 128), (600, 150), (4200, 1000)])
def test_no_more_than_a_fifth_is_tuned_on(certification: int, tuning: int) -> None:
    """As far as that leaves enough to choose by, and up to a thousand."""
    asked = [[f"How {how} are {i}?" for i in range(count)] for how, count in (("many", 1100), ("old", certification))]
    parts = parts_of(task(*given_parts(*asked)))
    assert (len(parts.tuning), len(parts.certification)) == (tuning, certification)
    assert len(parts_of(task(*given_parts(*asked)), trains=True).tuning) == 1000


STORY = (
    "{0} bought {1} packages of cat food and {2} packages of dog food for the shelter. Each package of cat food held "
    "{3} tins, and each package of dog food held half as many. How many tins did {0} bring to the shelter altogether?"
)
KIM, CHAD = STORY.format("Kimberly", 8, 6, 12), STORY.format("Chad", 5, 2, 18)
CATS = "Kimberly has two cats and a dog. The dog eats twice what a cat eats. How many tins does she need in a week?"
MADE_UP = ["".join(Random(i).choices("abdefgiklmnoprstu", k=5)) for i in range(500)]
FILL = [" ".join(Random(i).choices(MADE_UP, k=30)) for i in range(600)]  # texts that share words, but nothing else


def test_other_names_and_numbers_are_a_near_duplicate() -> None:
    found = near_duplicates([CATS, KIM, *FILL[:5]], [CHAD, *FILL[300:]])
    assert found is not None
    assert found.closest == (KIM, CHAD)
    assert BOUND <= found.similarity < 1
    assert found.count == 1


def test_the_same_subject_is_not_a_near_duplicate() -> None:
    assert near_duplicates([CATS], [CHAD, *FILL[300:]]) is None


def test_all_texts_are_compared_across_chunks() -> None:
    texts = [*FILL[:299], KIM]
    found = near_duplicates(texts, [CHAD, CATS])
    assert found is not None
    assert (found.count, found.closest) == (1, (KIM, CHAD))


@settings(max_examples=25)
@given(st.lists(st.text(min_size=1), min_size=1, max_size=5), st.data())
def test_equal_texts_of_any_length_are_near_duplicates(texts: list[str], data: st.DataObject) -> None:
    found = near_duplicates([data.draw(st.sampled_from(texts))], texts)
    assert found is not None
    assert found.similarity == pytest.approx(1)


def test_case_does_not_matter() -> None:
    found = near_duplicates([KIM.upper()], [KIM, *FILL[:5]])
    assert found is not None
    assert found.similarity == pytest.approx(1)


def test_empty_sets_have_no_near_duplicates() -> None:
    assert near_duplicates([], [KIM]) is near_duplicates([KIM], []) is near_duplicates([KIM], ["2³?"]) is None


def test_near_duplicates_between_given_parts_are_noted() -> None:
    tuning, certification = [CHAD, *FILL[:30]], [KIM, *FILL[30:60]]
    examples = [Example(question, "#### 1", "tuning") for question in tuning]
    examples += [Example(question, "#### 1", "certification") for question in certification]
    (note,) = _parts(examples).notes
    assert "1 of 31 certification problems closely resemble" in note
    assert KIM[:40] in note
    assert CHAD[:40] in note
    assert "\n" not in note


def test_near_duplicates_between_hashed_parts_are_not_noted() -> None:
    stories = [STORY.format(name, 8, 6, 12) for name in ("Ana", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hal")]
    drawn = _parts([Example(question, "#### 1") for question in (*stories, *FILL[:50])])
    (note,) = drawn.notes
    assert "closely resemble another" in note  # within the certification part
    examples = [Example(p.question, p.reference, "tuning") for p in drawn.tuning]
    examples += [Example(p.question, p.reference, "certification") for p in drawn.certification]
    assert any("closely resemble a tuning problem" in note for note in _parts(examples).notes)  # given by the source


def test_generated_problems_raise_no_alarm_about_themselves() -> None:
    """They come from templates, so most resemble another, and none is nearly the same as many."""
    assert not parts_of(load_task("arithmetic", limit=1000)).notes


def test_a_large_part_is_compared_as_far_as_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fsd_calib.tasks.split._COMPARED", 20)
    twice = [f"{text}{end}" for text in FILL[:40] for end in ("", " now")]
    (note,) = _parts([Example(question, "#### 1") for question in twice]).notes
    assert "of the first 20 certification problems" in note


ASKED = [problem.question for problem in islice(fresh(0), 508)]
SHOTS = "".join(f"Question: {question}\nAnswer: #### 7\n\n" for question in ASKED[500:])
SYSTEM = "You are a careful tutor who explains each step to a child, in short sentences, and checks the sum twice. " * 6


@pytest.mark.parametrize(
    ("wrapped", "least"),
    [("{}\nThink step by step.", 1), (SYSTEM + "{}", 1), ('{{"q": "{}"}}', 1), (SHOTS + "Question: {}\nAnswer:", 0.4)],
)
def test_questions_are_found_in_whatever_wraps_them(wrapped: str, least: float) -> None:
    rewritten = [wrapped.format(question) for question in ASKED[:200]]
    for texts, known in ((rewritten, ASKED[:300]), (ASKED[:200], [wrapped.format(each) for each in ASKED[:300]])):
        found = held(texts, known)
        assert found is not None
        assert found.count >= least * 200
        assert found.similarity >= HELD
    others = held(rewritten, ASKED[200:])  # among them what wraps these, and one that resembles one of these
    assert others is None or others.count == 1


@settings(max_examples=25)
@given(st.lists(st.text(min_size=1), min_size=1, max_size=5))
def test_equal_texts_hold_each_other(texts: list[str]) -> None:
    found = held([*texts, *FILL[:9]], [*texts, *FILL[9:20]])
    assert found is not None
    assert found.similarity == pytest.approx(1)
    assert held([], texts) is held(texts, []) is held(FILL[:30], FILL[30:60]) is None


def test_one_group_leaves_a_part_empty() -> None:
    with pytest.raises(UsageError, match=r"20 problems in 1 group leave 0 .*give more groups"):
        parts_of(task_of([replace(each, source={"about": 1}) for each in ENOUGH]).grouped_by("about"))


def _parts(examples: list[Example]) -> Parts:
    return parts_of(task_of(examples))


@pytest.mark.slow
def test_gsm8k_has_three_near_duplicates() -> None:
    """Each is one story with other names and numbers; see `BOUND`."""
    if not GSM8K.exists():
        pytest.skip("GSM8K's files are not beside the checkout")
    train, test = (
        [content_key(json.loads(line)["question"]) for line in (GSM8K / f"{name}.jsonl").read_text().splitlines()]
        for name in ("train", "test")
    )
    found = near_duplicates(test, train)
    assert found is not None
    assert (found.count, round(found.similarity, 2)) == (3, 0.87)
    assert [text.partition(" bought stamps")[0] for text in found.closest] == ["Max", "Bella"]
