"""The `gsm8k` task: grade-school word problems, from the Hugging Face hub or from a file in the original form.

GSM8K: Cobbe et al. 2021, arXiv 2110.14168. Its train part is used for tuning and its test part for certification; a
file has no parts.
"""

from __future__ import annotations

from fsd_calib.tasks.asking import WorkedExamples
from fsd_calib.tasks.base import Example, TaskKind
from fsd_calib.tasks.grading.graders import same_number
from fsd_calib.tasks.grading.numbers import MARK, marked_number
from fsd_calib.tasks.kinds import worked
from fsd_calib.tasks.rows import HubData, Row, read_or_fetch
from fsd_common.errors import UsageError

_HUB = HubData(
    "openai/gsm8k", {"train": "tuning", "test": "certification"}, "main", ("README.md", "main/*"),
    "a local FILE.jsonl in the original form",
)  # fmt: skip


def _example(row: Row) -> Example:
    answer = row.text("answer")
    if marked_number(answer) is None:
        raise UsageError(f"{row.where}: the answer does not end in '{MARK} N'; N must be its final number")
    return Example(row.text("question"), answer)


# Reference solutions stay under 400 tokens; instruction-tuned models explain more than those do.
GSM8K = TaskKind("gsm8k", read_or_fetch("gsm8k", _HUB, _example), WorkedExamples(worked("gsm8k")), 512, same_number)
