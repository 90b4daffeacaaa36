"""The grader `python-tests`: whether the function that a model wrote passes its problem's tests, run in the sandbox.

The columns are HumanEval's: `prompt`, the beginning of a module up to the function's docstring; `entry_point`, the
function's name; and `test`, which defines `check(candidate)`.
"""

from __future__ import annotations

import re
from functools import lru_cache

from fsd_calib.tasks.base import Problem
from fsd_calib.tasks.sandbox.run import run_python
from fsd_decoding.errors import UsageError

COLUMNS = ("prompt", "entry_point", "test")
STOP = ("\nclass ", "\ndef ", "\n#", "\nif ", "\nprint(")  # begin what follows a completed function

_BLOCK = re.compile(
    r"^[ \t]*```[ \t]*(?:python3?|py)?[ \t]*\n(.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE | re.IGNORECASE
)


def passes_tests(problem: Problem, text: str) -> bool:
    """Whether the function in a text passes the tests of its problem; see `program_of`.

    Raises:
        UsageError: The problem lacks a column, or there is no sandbox here (`checked_bwrap`).
    """
    return _passes(program_of(problem, text))


def program_of(problem: Problem, text: str) -> str:
    """Returns the program that passes if the function in a text is right: its module, the tests and a call of them.

    The function is that of the last fenced block that defines it, or that of a text which begins at the left margin and
    defines it; what the prompt has before the function, such as imports, precedes it. Any other text continues the
    prompt, up to the first of `STOP`.
    """
    prompt, name, test = (_column(problem, column) for column in COLUMNS)
    return f"{_module(prompt, name, text)}\n\n{test}\n\ncheck({name})\n"


def _module(prompt: str, name: str, text: str) -> str:
    definition = re.compile(rf"^(?:async[ \t]+)?def[ \t]+{re.escape(name)}\b", re.MULTILINE)
    whole: list[str] = [block for block in _BLOCK.findall(text) if definition.search(block)]
    if not whole and text[:1].strip() and definition.search(text):
        whole = [text]
    if not whole:
        return prompt + text[: min((at for stop in STOP if (at := text.find(stop)) >= 0), default=None)]
    found = definition.search(prompt)
    return (prompt[: found.start()] if found else "") + whole[-1]


def _column(problem: Problem, column: str) -> str:
    value = problem.row.get(column)
    if not isinstance(value, str):
        raise UsageError(
            f"problem {problem.id}: its column {column!r} is {value!r:.40}; python-tests needs a text in each of "
            f"{', '.join(COLUMNS)}"
        )
    return value


@lru_cache(maxsize=1 << 14)  # grades are asked for anew each time, and a run takes a tenth of a second
def _passes(program: str) -> bool:
    return run_python(program).passed
