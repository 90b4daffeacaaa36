"""The tuning and certification parts: their problems, order and notes."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsd_calib.tasks import Problem, Task, load_task
from fsd_calib.tasks.base import Example
from fsd_calib.tasks.grading.graders import same_number
from fsd_calib.tasks.split import Parts, parts_of
from fsd_collectors.split import Part, content_key
from fsd_common.errors import UsageError
from support.calibration.task_files import task_of
from support.paths import GSM8K

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


def test_groups_that_the_source_tears_apart_are_on_one_side(tmp_path: Path) -> None:
    sides: tuple[Part, ...] = ("tuning", "certification")
    rows = [{"question": f"How many are {i}?", "answer": "#### 1", "about": i // 4} for i in range(200)]
    examples = [Example(str(r["question"]), "#### 1", sides[i % 2], source=r) for i, r in enumerate(rows)]
    parts = parts_of(task(*examples).grouped_by("about"))
    assert sum(map(len, parts[:2])) == 200
    assert not {problem.group for problem in parts.tuning} & {problem.group for problem in parts.certification}
    assert any("50 groups have problems in both parts of the source" in note for note in parts.notes)
    whole = [replace(each, part=sides[i // 4 % 2]) for i, each in enumerate(examples)]  # which keeps them together
    kept = parts_of(task(*whole).grouped_by("about"))
    assert (len(kept.tuning), len(kept.certification)) == (100, 100)


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


def test_at_most_a_thousand_problems_are_tuned_on() -> None:
    parts = parts_of(task(*given_parts([f"How many are {i}?" for i in range(1100)], ["Why?", "When?"])))
    assert len(parts.tuning) == 1000
