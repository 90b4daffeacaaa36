r"""The `math` task: competition problems whose answers are expressions in a box, `\boxed{\frac{1}{2}}`.

MATH-500: a choice of 500 problems (Lightman et al. 2023, arXiv 2305.20050) from MATH (Hendrycks et al. 2021, arXiv
2103.03874). It has no parts, and 500 problems certify only coarse claims; a larger file has the same columns:
`problem`, and `answer` or a `solution` that ends in a box.
"""

from __future__ import annotations

from fsd_calib.tasks.asking import WorkedExamples
from fsd_calib.tasks.base import Example, TaskKind
from fsd_calib.tasks.grading.graders import same_expression
from fsd_calib.tasks.grading.phrases import last_box
from fsd_calib.tasks.kinds import worked
from fsd_calib.tasks.rows import HubData, Row, read_or_fetch
from fsd_common.errors import UsageError

_BOXED = "Solve the problem step by step. Give the final answer alone in a box at the end: \\boxed{answer}."
_HUB = HubData("HuggingFaceH4/MATH-500", {"test": None}, instead="a local file with the columns problem and answer")


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


MATH = TaskKind(
    "math", read_or_fetch("math", _HUB, _example), WorkedExamples(worked("math"), _BOXED), 512, same_expression
)
