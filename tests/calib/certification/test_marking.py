"""What was looked at outside of a calibration certifies nothing afterwards, however it is asked then."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fsd_calib.certification.attempt_ledger import AttemptLedger
from fsd_calib.certification.marking import LEDGER, Asked, mark
from fsd_calib.tasks.base import Example, Problem, problem_of
from fsd_calib.tasks.kinds.multiple_choice import choice_example
from fsd_calib.tasks.rows import Row
from fsd_decoding.models.fingerprint import family_id
from support.models.tiny_models import llama

ROW = {"question": "How many apples?", "answer": "#### 4", "id": 7}


def usable(target: object, folder: Path, *problems: Problem) -> list[bool]:
    with AttemptLedger(folder / LEDGER) as ledger:
        return [bool(free) for free in ledger.usable(family_id(target), problems, "run")]


def asked(text: str, row: dict[str, object] | None = None) -> Problem:
    return problem_of(Example(text, "#### 4", source=row), text)


def test_a_text_and_a_row_that_were_looked_at_certify_nothing(tmp_path: Path) -> None:
    target = llama(seed=1)
    mark(target, [Asked("How many  pears?"), Asked("Say how many apples there are.", ROW)], tmp_path)
    free = usable(
        target, tmp_path, asked("How many pears?"), asked("How many pears\n ?"), asked("How many apples?", ROW),
        asked("Apples, how many?", ROW), asked("How many apples?", ROW | {"id": 8}),
    )  # fmt: skip
    assert free == [False, True, False, False, True]
    assert usable(llama(seed=2), tmp_path, asked("How many pears?")) == [True]  # another target


def test_a_problem_of_math_is_what_a_prompt_of_its_row_asks(tmp_path: Path) -> None:
    """lm-eval's tasks of MATH add columns to its rows, so that these are other rows."""
    row: dict[str, object] = {"problem": "How many apples?", "solution": r"\boxed{4}"}
    target = llama(seed=1)
    mark(
        target,
        [Asked.of_row(row | {"answer": "4", "few_shot": 1}, "Problem:\nHow many apples?\n\nSolution:")],
        tmp_path,
    )
    assert usable(target, tmp_path, asked("How many apples?", row), asked("How many pears?")) == [False, True]


def test_choices_are_a_part_of_what_was_asked(tmp_path: Path) -> None:
    """As tasks show them: a test set may ask "Which is true?" of everything."""
    rows = [{"question": "Which is true?", "choices": ["all", f"none of {n}"], "answer": 0} for n in range(5)]
    own = [choice_example(Row("row", row), "Which is true?", row["choices"], row["answer"]) for row in rows]
    problems = [problem_of(example, example.question) for example in own]  # without their rows
    target = llama(seed=1)
    mark(target, [Asked.of_row(row, "a whole prompt") for row in rows[:3]], tmp_path)
    assert usable(target, tmp_path, *problems) == [False, False, False, True, True]
    sourced = [replace(problem, source=row) for problem, row in zip(problems, rows, strict=True)]
    mark(target, [Asked("Which is true?", row) for row in rows], tmp_path)
    assert usable(target, tmp_path, *sourced) == [False] * 5


@pytest.mark.parametrize("content", ["no ledger", None], ids=["damaged", "a folder"])
def test_what_needs_no_certificate_goes_on_where_the_ledger_cannot_be_used(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / LEDGER
    path.mkdir() if content is None else path.write_text(content)
    with pytest.warns(UserWarning, match="ledger of attempts .* so these problems are not recorded") as told:
        mark(llama(seed=1), [Asked("How many?")], tmp_path)
    (line,) = (str(each.message) for each in told)
    assert "\n" not in line
    assert "--" not in line  # no option, which the command may not have


def test_what_was_asked_is_not_kept(tmp_path: Path) -> None:
    mark(llama(seed=1), [Asked("My secret.", {"question": "My secret."})], tmp_path)
    with AttemptLedger(tmp_path / LEDGER) as ledger:
        assert ledger.other_questions(family_id(llama(seed=1)), []) == []
    assert b"secret" not in (tmp_path / LEDGER).read_bytes()
