"""The letter that a text chooses, in the styles that models write."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsd_calib.tasks.grading.choices import final_choice
from fsd_decoding.profile.prompt_form import LETTERS

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
    # in other words
    ("(A) is wrong. (C) is wrong. (B) is right.", "B"),
    ("A. is not possible, nor is C.", None),
    ("The answer is (A) and (B)", None),
    ("The answer is (A) and (B).", None),
    ("A, B", None),
    ("(A)/(B)", None),
    ("(A) bank or (B) library", None),
    ("The answer is (A) bank or (B) library.", None),
    ("The answer is A or B", None),
    ("The answer is A/B", None),
    ("The answer is **A** and **B**", None),
    ("(B), not (A)", "B"),
    ("The answer is (B), not (A)", "B"),
    ("The answer is B, not A", "B"),
    (r"\boxed{\text{library}}", "B"),
    ("the answer is library", "B"),
    ("the library", "B"),
    ("The answer is the library.", "B"),
    ("The answer is B library", "B"),
    (r"The answer is \(B\)", "B"),
    (r"The answer is \(B\).", "B"),
    ("The answer is <B>", "B"),
    ("Option B is correct", "B"),
    ("B is the correct answer", "B"),
    ("I choose B", "B"),
    ("I choose (B).", "B"),
    ("So B.", "B"),
    ("They lend. So B.", "B"),
    ("Therefore, B", "B"),
    ("The correct answer is therefore B", "B"),
    ("The answer is most likely B", "B"),
    ("The answer is not A, it is B", "B"),
    ("The correct answer among the options is (B), not (A)", "B"),
    ("Answer - B", "B"),
    ("B library", "B"),
    ("b", "B"),
    ("(b)", "B"),
    ("b.", "B"),
    ("### Answer\nB", "B"),
    ("**Answer**\n\n(B) a library", "B"),
    ("B, A is wrong? The answer is B, (A) is wrong", "B"),
    ("The answer is B. A is wrong", "B"),
    ("(A) a bank\n(B) a library\nSo B.", "B"),
    ("(B) a library: it lends", "B"),
    ("The answer is A's", None),
    ("The answer is library, not bank", "B"),
    ("The answer is bank or library", None),
    ("The answer is **library**.", "B"),
    ("The answer is (B) a library or bank.", "B"),
    ("The answer is A bank", "A"),
    ("The answer is that C is good", None),
    ("The answer is (A) (B)", None),
    ("The answer is B and not A", "B"),
    ("The answer is, I think", None),
    (r"$\boxed{\mathrm{B}}$", "B"),
    (r"\boxed{B) \text{ a library}}", "B"),
    ("The answer is: **B) a library**", "B"),
    ("The answer is A, B, or C.", None),
    ("The answer is both A and B", None),
    ("The answer is not A", None),
]
NUMBERS = [
    ("The answer is 1/6", None),
    ("The answer is 1 or 5", None),
    ("The answer is 1,000", None),
    ("The answer is 5.5", None),
    ("The answer is 5.", "C"),
    ("The answer is 5, since", "C"),
    ("The answer is 5 apples", "C"),
    ("The answer is $5$.", "C"),
    ("5", "C"),
    ("1/6", None),
    ("1 or 5", None),
    ("1,000", None),
    ("5.5", None),
    ("The answer is 1 - 5", None),
    ("The answer is 5 - because it", "C"),
    ("The answer is 1 000", None),
    (r"\boxed{5}", "C"),
    (r"The answer is \(5\).", "C"),
    (r"\boxed{5.5}", None),
    ("The answer is 5%", None),
]


@pytest.mark.parametrize(("text", "letter"), READINGS)
def test_final_choice_reads_a_text_as_a_person_would(text: str, letter: str | None) -> None:
    assert final_choice(text, CHOICES) == letter


@pytest.mark.parametrize(("text", "letter"), NUMBERS)
def test_a_part_of_a_number_is_no_choice(text: str, letter: str | None) -> None:
    assert final_choice(text, ("0", "1", "5", "6")) == letter


@pytest.mark.thinned(every=19)
@pytest.mark.parametrize(
    "part",
    ["*", "(", ")", "\n", " ", "answer is ", "answer is A ", "answer is not A ", "So ", "B is ", "I choose ", "A and ",
     "A, ", "A\n", "(A) ", "\\", "\\text{", "bank or ", "most "],
)  # fmt: skip
def test_long_texts_are_read_in_seconds(part: str) -> None:
    for start in ("", "The answer is ", "The answer is A"):
        before = time.process_time()
        final_choice(start + part * (100_000 // len(part)), CHOICES)
        assert time.process_time() - before < 5


def test_options_that_are_signed_numbers_differ() -> None:
    assert final_choice("The answer is 1.", ("-1", "1", "0")) == "B"
    assert final_choice("The answer is -1.", ("-1", "1", "0")) == "A"


@given(st.text(), st.lists(st.text(), min_size=2, max_size=10))
def test_any_text_names_one_of_the_letters_or_none(text: str, choices: list[str]) -> None:
    assert final_choice(text, choices) in (None, *LETTERS[: len(choices)])
