"""The `humaneval` task: functions to write from their docstring, graded by their tests in the sandbox.

HumanEval: Chen et al. 2021, arXiv 2107.03374; pass@1 is the share of problems whose first answer passes. The source has
one part, which is split by content. Its 164 problems, some 115 of them for the certificate, are few: they can only show
that no large share of the accuracy is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fsd_calib.tasks.asking import Asking, instructed
from fsd_calib.tasks.base import Example, TaskKind
from fsd_calib.tasks.grading.python_tests import COLUMNS, STOP, passes_tests
from fsd_calib.tasks.rows import HubData, Row, read_or_fetch
from fsd_calib.tasks.sandbox.run import checked_bwrap
from fsd_decoding.profile.prompt_form import QUESTION, PromptForm

_HUB = HubData(
    "openai/openai_humaneval", {"test": None}, files=("README.md", "openai_humaneval/*"),
    instead="the original file, HumanEval.jsonl.gz",
)  # fmt: skip
_SOLUTION = "canonical_solution"
_INSTRUCTION = (
    "Complete the Python function that the user gives. Answer with one ```python block that holds the whole function, "
    "its signature and the imports it needs included, and no examples of its use."
)


def _read(seed: int, limit: int | None, data: Path | None) -> tuple[Sequence[Example], str]:
    checked_bwrap()  # before anything is decoded that could not be graded
    return read_or_fetch("humaneval", _HUB, _example)(seed, limit, data)


def _example(row: Row) -> Example:
    """White space is kept, as it is part of the program."""
    return Example(row.raw("prompt"), row.raw(_SOLUTION), row={column: row.raw(column) for column in COLUMNS})


def _form(asking: Asking) -> tuple[PromptForm, Sequence[str]]:
    """Chat models are instructed; others complete the prompt itself."""
    return (instructed(_INSTRUCTION), ()) if asking.chats else (PromptForm(text=QUESTION), STOP)


HUMANEVAL = TaskKind("humaneval", _read, _form, max_new_tokens=512, grader=passes_tests)
