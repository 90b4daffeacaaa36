"""Numbers parsed from texts; on all of GSM8K where its files are present."""

from __future__ import annotations

import json
import time
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsd_calib.tasks.grading.numbers import final_number, marked_number, same_answer
from support.paths import GSM8K

READINGS = [
    ("#### 18", "18"),
    ("so 3+4=7\n#### 7", "7"),
    ("####7", "7"),
    ("#### $1,234.50", "1234.5"),
    ("#### 18 dollars", "18"),
    ("first 5\n#### 3\nno, rather\n#### 4", "4"),
    ("it is 12\n####", "12"),
    ("it is 12\n#### unknown", "12"),
    ("#### 12\n####", "12"),
    ("The answer is 18.", "18"),
    ("The answer is 18.0.", "18"),
    ("That makes $5.", "5"),
    ("It costs -$5", "-5"),
    ("It costs $-5", "-5"),
    (r"It costs \$5", "5"),
    ("It rises by 25%.", "25"),
    ("She walks 3 km.", "3"),
    ("109,200,000 people", "109200000"),
    ("either 3,4", "4"),
    ("1,2345", "2345"),
    ("from 1,000,50", "50"),
    ("a rate of .5", "0.5"),
    ("well...5", "5"),
    ("version 2.", "2"),
    ("it is -3", "-3"),
    ("it is −3", "-3"),
    ("(-3)", "-3"),
    ("x=-3", "-3"),
    ("**-3**", "-3"),
    ("x-3", "3"),
    ("5-3", "3"),
    ("5−3", "3"),
    ("$5-$3", "3"),
    ("(x+1)-3", "3"),
    ("10%-3", "3"),
    ("5 - 3", "3"),
    ("price--3", "3"),
    (r"\boxed{12}", "12"),
    (r"\(\boxed{-12}\)", "-12"),
    (r"\boxed{\$1{,}200}", "1200"),
    (r"12\,000 \text{ km}", "12000"),
    ("007", "7"),
    ("-0", "0"),
    # text after the answer
    ("#### 18\nLet me know if you have 2 more questions!", "18"),
    ("#### 18 dollars in 2 days", "18"),
    ("#### 18\n#### \nThat took 3 steps.", "18"),
    ("#### 16 - 3 - 4 = 9", "9"),
    ("The answer is 18. I hope that helps! Ask 3 more.", "18"),
    ("The final answer is: **42**\n\nStep 3 was the hardest of 5.", "42"),
    ("**Answer:** $1,200\n(of 3 people)", "1200"),
    ("**Answer**: 7 km in 2 hours", "7"),
    ("Answer = 7", "7"),
    ("The correct answer is approximately 3.5 (not 4).", "3.5"),
    ("the answer is 5 + 3 = 8 apples, in 2 bags", "8"),
    ("The answer is 5 apples. In short: 4 + 4 = 8.", "5"),
    ("The answer is that in 3 hours he drives 45 miles", "45"),
    ("The answer is\n\n42", "42"),
    ("The answer to the question is -4, since 2 < 3.", "-4"),
    ("The answer would be \\$30 for 2.", "30"),
    # several candidates
    ("The answer is 3. Wait: the answer is 4, as 2 + 2.", "4"),
    ("First \\boxed{3}, but then \\boxed{4}. See step 7.", "4"),
    ("It is 3 or 4", "4"),
    # boxes and LaTeX
    ("So \\boxed{42}. Step 3 is as in problem 7.", "42"),
    ("\\boxed{x = 5}", "5"),
    ("\\boxed{\\text{12 km}}, see 3", "12"),
    ("\\boxed{}, so 5", "5"),
    ("\\boxed 6 of 9", "6"),
    ("\\fbox{8}, 9", "8"),
    ("$\\boxed{\\frac{3}{4}}$ of 2", "3/4"),
    ("\\[ x = \\dfrac{-7}{2} \\]", "-7/2"),
    ("-\\frac{7}{2}", "-7/2"),
    ("\\frac12", "1/2"),
    ("$$x = 1{,}000$$", "1000"),
    # fractions, percentages, currencies
    ("1/2", "1/2"),
    ("#### 3/4 cup", "3/4"),
    ("he ate 2 1/2 pies", "5/2"),
    ("-3/4", "-3/4"),
    ("2/2=1", "1"),
    ("6 / 4", "3/2"),
    ("on 3/4/2020", "2020"),
    ("1/0", "0"),
    ("#### 50%", "50"),
    ("The answer is 12.5 %.", "12.5"),
    ("€1,000.00", "1000"),
    ("£7 each", "7"),
    ("#### -$20", "-20"),
    # fractions and units in TeX
    (r"\boxed{2\frac{1}{2}}", "5/2"),
    (r"\boxed{\frac{-1}{2}}", "-1/2"),
    (r"\frac{1}{-2}", "-1/2"),
    (r"\frac1{12}", "1/12"),
    (r"\frac{1,000}{3}", "1000/3"),
    (r"\frac{1.5}{3}", "1/2"),
    (r"\boxed{25 \text{ cm}^2}", "25"),
    (r"\boxed{x = 25 \text{ cm}^2}", "25"),
    # signs, fractions and spaces of other alphabets
    ("The answer is –5 of 7", "-5"),
    ("The answer is \u20115 of 7", "-5"),
    ("2½", "5/2"),
    ("½", "1/2"),
    ("-½", "-1/2"),
    ("12\u202f345", "12345"),
    ("12\u00a0345", "12345"),
    (r"12\ 345", "12345"),
    ("The answer is 12 345 dollars", "12345"),
    ("#### $1 234 567", "1234567"),
    ("of 12 345", "345"),
    ("so 1e-07", "1e-07"),
    ("it is 3e22.", "3e22"),
    # between the phrase and its number, and after it
    ("So the answer is:\n$$14$$\nChecking 7*2", "14"),
    ("the answer is\n\\[ 7 \\times 2 = 14 \\]\nSee step 3", "14"),
    ("the answer is 7 * 2\n= 14\nSee step 3", "14"),
    ("**Answer**\n\n14\n\nNote 3 things", "14"),
    ("### Answer\n14 apples\n(2 checks)", "14"),
    ("Answer:\n1. Take 3.\n2. So there are 4 apples", "4"),
    ('The answer is "14" in 2', "14"),
    ("The answer is ₹14 of 20", "14"),
    ("The answer is ¥14 of 20", "14"),
    ("The answer is Rs. 14 of 20", "14"),
    ("The answer is <b>14</b> of 20", "14"),
    (r"The answer is $\mathbf{14}$ of 20", "14"),
    (r"The answer is \textbf{14} of 20", "14"),
    (r"The answer is $\displaystyle 14$ of 20", "14"),
    ("The answer is +14 of 20", "14"),
    ("The answer is indeed 14 of 20", "14"),
    ("The answer is then 14 of 20", "14"),
    ("The final result is 14 of 20", "14"),
    ("#### Step 1: add 3\n#### Step 2: multiply 5\nThe answer is 15.", "15"),
    ("#### Step 2: x = 5\nThat took 3", "5"),
    ("#### 1. Find the cost\n3 * 4 = 12\n#### 2. Add the tax\n12 + 3 = 15, so it is $15.", "15"),
    ("#### **1. Find it**\n3 * 4\n#### **2. Add**\nThe answer is 12. I took 2 steps.", "12"),
    ("#### 1. Find it\n3 * 4\n#### 2. Add\n#### 12", "12"),
    ("#### 12. So it is 12 apples\n#### 13. No, 13", "13"),
]


@pytest.mark.parametrize(("text", "number"), READINGS)
def test_final_number_reads_a_number_as_a_person_would(text: str, number: str) -> None:
    assert final_number(text) == Fraction(number)


@pytest.mark.parametrize("text", ["", "####", "no idea", "#### none", "$", "-", ",.", "one hundred"])
def test_text_without_a_number_gives_none_and_is_wrong(text: str) -> None:
    assert final_number(text) is None
    assert not same_answer("#### 1", text)
    assert not same_answer(text, text)


@pytest.mark.thinned(every=20)
@pytest.mark.parametrize(
    "part",
    ["9", "1 ", " ", "answer is ", "answer is 1", "####", "#### 1", "\\", "\\frac{1}{", "\\boxed{", "1=", "1,", "1/",
     "1e1", "½", "*", "-", "\n", "final ", "<a"],
)  # fmt: skip
def test_long_texts_are_read_in_seconds(part: str) -> None:
    """Those whose reading takes the square of their length would take minutes."""
    for start in ("", "The answer is "):
        before = time.process_time()
        final_number(start + part * (100_000 // len(part)))
        assert time.process_time() - before < 10


def test_marked_number_requires_the_mark() -> None:
    assert marked_number("the answer is 5") is None
    assert marked_number("5 ####") is None
    assert marked_number("5 #### 6") == 6
    assert marked_number("#### Step 6") is None


def test_numbers_too_close_for_floats_differ() -> None:
    assert float("9007199254740993") == float("9007199254740992")
    assert not same_answer("#### 9007199254740993", "#### 9007199254740992")
    assert not same_answer("#### 0.1", "#### 0.10000000000000001")


@given(st.decimals(allow_nan=False, allow_infinity=False, places=2), st.booleans())
def test_every_printed_decimal_is_read_back(number: Decimal, grouped: bool) -> None:
    written = f"{number:,f}" if grouped else f"{number:f}"
    assert final_number(f"In all, 7 of them cost {written}.") == number


@given(st.text())
def test_any_text_is_parsed_without_an_error(text: str) -> None:
    assert final_number(text) is None or marked_number(text) in (None, final_number(text))


@given(st.integers(), st.integers())
def test_two_integers_are_the_same_answer_only_when_equal(a: int, b: int) -> None:
    assert same_answer(f"#### {a}", f"So it is {b:,}.") == (a == b)
    assert same_answer(f"#### {a:,}", f"#### {a}.00")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "count"), [("train", 7473), ("test", 1319)])
def test_every_gold_answer_of_gsm8k_is_right_and_every_altered_one_wrong(name: str, count: int) -> None:
    path = GSM8K / f"{name}.jsonl"
    if not path.exists():
        pytest.skip("GSM8K's files are not beside the checkout")
    answers = [json.loads(line)["answer"] for line in path.read_text("utf-8").splitlines()]
    assert len(answers) == count
    for answer in answers:
        working, _, written = answer.rpartition("#### ")
        gold = int(written.replace(",", ""))  # parsed independently: all of them are integers
        for right in _right_texts(answer, working, written, gold):
            assert same_answer(answer, right), right
        for wrong in _wrong_numbers(gold):
            assert not same_answer(answer, f"{working}#### {wrong}"), wrong
            assert not same_answer(answer, f"12 - 3 makes {gold}? The answer is ${wrong}."), wrong


def _right_texts(answer: str, working: str, written: str, gold: int) -> list[str]:
    return [
        answer,
        f"{working}#### {gold}",
        f"{working}#### ${written}.",
        f"{working}The answer is ${written}.",
        f"{working}The answer is {gold}.00 dollars.",
        f"{working}So we get \\boxed{{{gold:,}}}.".replace("-", "−"),
    ]


def _wrong_numbers(gold: int) -> list[str]:
    """Returns the number plus one, negated, with a digit appended or dropped, and with its first digits swapped."""
    digits = str(abs(gold))
    others = [gold + 1, gold - 1, -gold if gold else 1, gold * 10 + 1, int(f"{gold}7")]
    if len(digits) > 1:
        others.append(int(digits[1:]))
    if digits[:2] != digits[1::-1]:
        others.append(int(digits[1::-1] + digits[2:]))
    assert gold not in others
    return [str(other) for other in others] + [f"{other:,}" for other in others] + [f"{gold}.5"]
