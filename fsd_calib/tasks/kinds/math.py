r"""The `math` task: competition problems whose answers are expressions in a box, `\boxed{\frac{1}{2}}`.

MATH-500: a choice of 500 problems (Lightman et al. 2023, arXiv 2305.20050) from MATH (Hendrycks et al. 2021, arXiv
2103.03874). It has no parts, and 500 problems certify only coarse claims; a larger file has the same columns:
`problem`, and `answer` or a `solution` that ends in a box. The worked examples below were written for this project.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fsd_calib.tasks.asking import Exemplar, WorkedExamples
from fsd_calib.tasks.base import Example, TaskKind, pick
from fsd_calib.tasks.grading.expressions import same_expression
from fsd_calib.tasks.grading.phrases import last_box
from fsd_calib.tasks.rows import HubData, Row, examples_of, read_rows
from fsd_common.errors import UsageError

_BOXED = "Solve the problem step by step. Give the final answer alone in a box at the end: \\boxed{answer}."
_HUB = HubData(
    "HuggingFaceH4/MATH-500",
    {"test": None},
    instead="--data FILE takes a local file with the columns problem and answer",
)


def _read(seed: int, limit: int | None, data: Path | None) -> tuple[Sequence[Example], str]:
    rows = [row for row, _ in _HUB.rows("math")] if data is None else read_rows(data)
    return pick(examples_of(rows, _example), seed, limit), str(_HUB if data is None else data)


def _example(row: Row) -> Example:
    solution = row.text("solution") if "solution" in row.columns else ""
    if "answer" in row.columns:
        answer = row.text("answer")
        if last_box(solution) != answer:
            solution = f"{solution}\n\\boxed{{{answer}}}".lstrip()
    elif last_box(solution) is None:
        raise UsageError(f"{row.where}: neither a column 'answer' nor a box in 'solution'; give one of them")
    stratum = row.text("subject") if "subject" in row.columns else ""
    return Example(row.text("problem"), solution, stratum=stratum)


_WORKED: tuple[Exemplar, ...] = (
    (
        "For which real numbers $x$ is $2x + 7 = 3(x - 1)$?",
        "Expanding the right side gives $2x + 7 = 3x - 3$.\n"
        "Subtracting $2x$ and adding $3$ gives $x = 10$.\n"
        "\\boxed{10}",
    ),
    (
        "A fair coin is thrown three times. What is the probability of exactly two heads?",
        "Of the $2^3 = 8$ sequences, those with two heads are HHT, HTH and THH.\n"
        "So the probability is $\\frac{3}{8}$.\n"
        "\\boxed{\\frac{3}{8}}",
    ),
    (
        "The legs of a right triangle have the lengths $\\sqrt{5}$ and $2$. How long is its hypotenuse?",
        "By the theorem of Pythagoras the square of the hypotenuse is $5 + 4 = 9$.\nSo its length is $3$.\n\\boxed{3}",
    ),
    (
        "Factor $x^2 - 5x + 6$.",
        "Two numbers with the sum $-5$ and the product $6$ are $-2$ and $-3$.\n"
        "So the polynomial is $(x - 2)(x - 3)$.\n"
        "\\boxed{(x - 2)(x - 3)}",
    ),
)

MATH = TaskKind("math", _read, WorkedExamples(lambda asking: _WORKED, _BOXED), 512, same_expression)
