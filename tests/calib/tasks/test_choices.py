"""The letter that a text chooses, in the styles that models write."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsd_calib.tasks.grading.choices import LETTERS, final_choice

CHOICES = ("a bank", "a library", "the mall", "New York", "a revolving door")

READINGS = [
    ("The answer is (C).", "C"),
    ("The answer is C", "C"),
    ("the answer is c.", "C"),
    ("So the correct answer is **B**.", "B"),
    ("**Answer:** (D) New York", "D"),
    ("**Answer**: D) New York", "D"),
    ("Answer: E", "E"),
    ("Answer: [A]", "A"),
    ("The best option is option B, because it has books.", "B"),
    ("The correct choice is: b) a library", "B"),
    (r"The final answer is $\boxed{D}$.", "D"),
    (r"\boxed{\text{A}}", "A"),
    (r"\boxed{(E)} is right, not (B).", "E"),
    (r"The answer is \text{C}.", "C"),
    ("The answer is the mall.", "C"),
    ("The answer is a library, where books are.", "B"),
    ('The answer is "New York".', "D"),
    ("The answer is a revolving door", "E"),
    ("(A) is wrong and (B) is wrong. The answer is (C). Let me know if (A) is unclear.", "C"),
    ("The answer is (A). No: the answer is (B).", "B"),
    ("The answer to this question is (B).", "B"),
    ("The answer must be A.", "A"),
    ("B", "B"),
    ("(B)", "B"),
    ("B.", "B"),
    ("B) a library", "B"),
    ("**B**", "B"),
    ("Banks have doors.\n\nC", "C"),
    ("Banks have doors.\n(C) the mall", "C"),
    ("Only (D) is a city.", "D"),
    ("a bank", "A"),
    ("**A bank.**", "A"),
    ("", None),
    ("I do not know.", None),
    ("Both (A) and (B) fit.", None),
    ("A\nB", None),
    ("A door turns.", None),
    ("The answer is a matter of taste.", None),
    ("The answer is (F).", None),
    ("The answer is unclear.", None),
]


@pytest.mark.parametrize(("text", "letter"), READINGS)
def test_final_choice_reads_a_text_as_a_person_would(text: str, letter: str | None) -> None:
    assert final_choice(text, CHOICES) == letter


def test_options_that_are_signed_numbers_differ() -> None:
    assert final_choice("The answer is 1.", ("-1", "1", "0")) == "B"
    assert final_choice("The answer is -1.", ("-1", "1", "0")) == "A"


@given(st.text(), st.lists(st.text(), min_size=2, max_size=10))
def test_any_text_names_one_of_the_letters_or_none(text: str, choices: list[str]) -> None:
    assert final_choice(text, choices) in (None, *LETTERS[: len(choices)])
