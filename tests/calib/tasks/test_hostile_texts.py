"""Graders that run in this process end on any text, within a time that grows no faster than the text."""

from __future__ import annotations

import time
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsd_calib.tasks.base import Grader, Problem, Task
from fsd_calib.tasks.checking import faults
from fsd_calib.tasks.grading.graders import contains, near_number, same_choice, same_number, same_text, similar
from fsd_calib.tasks.grading.python_tests import parts_of
from lib.attacks.programs import PROBLEM

GRADERS: dict[str, Grader] = {
    "same_number": same_number, "near_number": near_number(0.01), "same_choice": same_choice, "same_text": same_text,
    "contains": contains, "similar": similar(0.9),
    "parts_of": lambda problem, text: not parts_of(PROBLEM, text),
}  # fmt: skip
PROBLEMS = [
    Problem(1, "", "", reference, None, ("1 1 2", "the mall", "A, B"))
    for reference in ("B", "1 1 2", "#### 12", "a a a b", r"\boxed{\frac{1}{2}}")
]
PIECES = [
    "1", "9", "12,345", "1,", ",111", "0", "1.", "1/", "/2", "1 ", " 111", "e999", "e-9", "½", " ⅞", "\u0663", "²",
    "−", "-", "–", "$", "%", "£", " ", "\t", "\n", "\u00a0", "\u2009", "\u2028", "\r\n", "####", "#", "*", "_", "`",
    "```", "~~~", "```python\n", "\\boxed{", "\\boxed ", "\\frac", "\\frac{1}{", "\\text{", "\\,", "{,}", "{", "}",
    "(", ")", "[", "]", "<b>", "=", "= ", "\n=", "^2", "the answer is ", "Answer", "answer to this question",
    "Answer:", "option ", "A", "(A)", "A ", "B or ", "A, ", "A,", "a ", "a", "A is ", "I choose ", "So ", "not ",
    "the ", "and ", "right", "B is the correct answer", ". ", "! ", "'", "\u2019s", "\ud800", "\x00",
    "def double(x):\n", "    ", "import x\n", "from __future__ import (", "@a\n", "你",
]  # fmt: skip


@pytest.mark.thinned(every=7)
@pytest.mark.parametrize("name", GRADERS)
@given(st.lists(st.sampled_from(PIECES), max_size=12), st.integers(1, 60))
def test_any_text_has_a_verdict(name: str, pieces: list[str], times: int) -> None:
    text = "".join(pieces) * times
    began = time.process_time()
    for problem in PROBLEMS:
        assert GRADERS[name](problem, text) in (True, False)
    assert time.process_time() - began < 5


@pytest.mark.parametrize(("piece", "name"), product(PIECES, GRADERS))
@pytest.mark.thinned(every=57)
def test_a_piece_repeated_takes_no_long_time(name: str, piece: str) -> None:
    assert _seconds(GRADERS[name], piece, "", 100_000) < 5
    assert _seconds(GRADERS[name], piece, "x", 100_000) < 5


def _seconds(grader: Grader, repeated: str, end: str, length: int) -> float:
    text = repeated * (length // len(repeated)) + end
    began = time.process_time()
    grader(PROBLEMS[1], text)
    return time.process_time() - began


@pytest.mark.parametrize("form", ["%s", r"\boxed{%s}", "2 1/%s", "no %s: x"])
def test_a_number_too_long_to_be_read_is_wrong_and_checked(form: str) -> None:
    text = form % ("7" * 5000)
    problem = Problem(1, "", "", f"#### {text}", None)
    assert not same_number(problem, text)
    assert not near_number(0.01)(problem, text)
    task = Task("numbers", (problem,), 9, (), "", same_number)
    assert [wanted for wanted, _ in faults(task)] == [True]  # which says that the reference is wrong
