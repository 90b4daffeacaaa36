"""Texts that models could write, given to every grader: all are wrong, and the next right one is still right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from fsd_calib.tasks.base import Grader, Problem
from fsd_calib.tasks.grading.graders import (
    contains,
    extracting,
    near_number,
    same_choice,
    same_expression,
    same_number,
    same_text,
    similar,
)  # fmt: skip
from fsd_calib.tasks.grading.python_tests import passes_tests
from lib.attacks.cases import Case, Stage, Verdict
from lib.attacks.guarded import GuardedProcess, Reading, fault_of
from lib.attacks.programs import CHEATS, EXHAUSTION, FORGERIES, PROBLEM, RIGHT

ATTACK = "texts"

_MANY = 100_000
TEXTS = {  # name -> a text, without the right answers below
    "nothing": "", "5,000 digits": "7" * 5000, "a million digits": "7" * 1_000_000,
    "boxed digits": rf"\boxed{{{'7' * 5000}}}",
    "a fraction of digits": "1/" + "3" * 5000, "an exponent": "1e999999999", "a small exponent": "#### 1e-999999999",
    "half a character": "\ud800", "nulls": "\0" * _MANY, "letters": "a" * 1_000_000, "lines": " \n" * _MANY,
    "boxes": r"\boxed{" * 20_000, "fractions": r"\frac{" * 20_000, "brackets": "(" * _MANY, "braces": "{}" * _MANY,
    "marks": "####" * 30_000, "marks of spaces": "#### " * 20_000, "answers": "the answer is " * 10_000,
    "letters of choices": "A, " * 30_000, "minus signs": "-" * _MANY, "commas": "1," * 50_000, "vulgar": "½" * _MANY,
    "digits of others": "\u0663" * _MANY, "fences": "```python\n" * 10_000, "indented fences": " ```\n" * 20_000,
    "backslashes": "\\" * _MANY, "dollars": "$" * _MANY, "signs": "=" * _MANY, "accents": "a" + "\u0301" * _MANY,
    "one word a line": "x\n" * _MANY, "from the right": "\u202e" * 1000, "emojis": "\U0001f600" * 30_000,
    "backtracking": "x=" + "1" * 60 + "x", "decorators": "@a\n" * 30_000, "futures": "from __future__ import (" * 5000,
}  # fmt: skip
EXPRESSIONS = {
    name: rf"\boxed{{{inner}}}"
    for name, inner in {
        "a tower": "9^{9^{9^9}}", "a factorial": "100000000!", "a binomial": r"\binom{1000000000}{500000000}",
        "an expansion": "(x+1)^{5000}", "an integral": r"\int_0^1 \sin(x^x)^{x^x} e^{x^{99}} dx", "a sum":
        r"\sum_{n=1}^{10^{12}} \frac{1}{n^n}", "a root of roots": r"\sqrt{" * 500 + "2" + "}" * 500, "a set":
        r"\{" + ",".join(map(str, range(3000))) + r"\}", "a matrix": r"\begin{matrix}" + "1&" * 3000 + r"\end{matrix}",
        "a product": "*".join(f"(x+{n})" for n in range(300)), "nested fractions": r"\frac{1}{" * 300 + "2" + "}" * 300,
    }.items()
}  # fmt: skip


class _Graded(NamedTuple):
    """A grader with a problem, its right answer, and hostile texts beside those for all."""

    make: Callable[[], Grader]
    problem: Problem
    right: str
    texts: dict[str, str] = {}  # noqa: RUF012  no one changes it


def _problem(reference: str, *choices: str) -> Problem:
    return Problem(1, "", "", reference, None, choices)


def _bodies() -> dict[str, str]:
    """Programs as texts: bodies of a function whose lines stand at the left margin, and modules."""
    bodies = {name: body for name, (body, _, _) in EXHAUSTION.items()} | FORGERIES
    texts = {name: "".join(f"    {line}\n" for line in body.splitlines()) for name, body in bodies.items()}
    return texts | {f"cheat {number}": f"```python\n{cheat}\n```" for number, cheat in enumerate(CHEATS)}


GRADERS = {
    "numeric": _Graded(lambda: same_number, _problem("#### 12"), "So the answer is 12."),
    "numeric with tolerance": _Graded(lambda: near_number(0.01), _problem("#### 12"), "12.05"),
    "choice": _Graded(lambda: same_choice, _problem("B", "the red one", "the blue one"), "The answer is (B)."),
    "exact": _Graded(lambda: same_text, _problem("12 pens"), "12 pens\n"),
    "contains": _Graded(lambda: contains, _problem("12 pens"), "Ann has 12  Pens."),
    "edit": _Graded(lambda: similar(0.9), _problem("12 pens"), "12 pens"),
    "extract": _Graded(lambda: extracting(r"=((?:\d|\d\d)+)$", same_text), _problem("12"), "x=12"),
    "math": _Graded(lambda: same_expression, _problem(r"\boxed{\frac{1}{2}}"), r"\boxed{0.5}", EXPRESSIONS),
    "python-tests": _Graded(lambda: passes_tests, PROBLEM, RIGHT, _bodies()),
}


def attack(stage: Stage) -> Iterator[Case]:
    cases = [(name, what) for name, graded in GRADERS.items() for what in (*graded.texts, *TEXTS)]
    with GuardedProcess() as process:
        for number in stage.chosen(range(len(cases)), [0]):
            name, what = cases[number]
            reading = process.call(graded_beside, name, what)
            yield Case(ATTACK, number, name, what, *judge(reading), reading.seconds)


@lru_cache
def _grader(name: str) -> Grader:
    return GRADERS[name].make()


def graded_beside(name: str, what: str) -> tuple[Any, Any]:
    """Returns the grades of a hostile text and of the right one after it, for the guarded process."""
    graded, grader = GRADERS[name], _grader(name)
    return grader(graded.problem, (graded.texts | TEXTS)[what]), grader(graded.problem, graded.right)


def judge(reading: Reading) -> Verdict:
    """Returns the verdict on the grades of a hostile text and of a right one, with its evidence."""
    if (fault := fault_of(reading)) is not None:
        return fault
    if reading.refusal is not None:
        return "unclear", f"a text ends the command: {reading.refusal}"
    hostile, right = reading.content
    if hostile is not False:
        return "silent", f"its grade is {hostile!r}"
    if right is not True:
        return "lost", f"the grade of a right text after it is {right!r}"
    return ("told", reading.warned[0]) if reading.warned else ("wrong", "")
