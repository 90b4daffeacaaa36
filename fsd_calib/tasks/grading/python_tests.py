"""The grader `python-tests`: whether the function that a model wrote passes its problem's tests, run in the sandbox.

The columns are HumanEval's: `prompt`, the beginning of a module up to the function's docstring; `entry_point`, the
function's name; and `test`, which defines `check(candidate)`.
"""

from __future__ import annotations

import re
import warnings
from functools import lru_cache
from importlib.resources import files
from textwrap import dedent
from typing import NamedTuple

from fsd_calib.tasks.base import Problem
from fsd_calib.tasks.sandbox.run import run_python
from fsd_common.errors import UsageError

COLUMNS = ("prompt", "entry_point", "test")
STOP = ("\nclass ", "\ndef ", "\n#", "\nif ", "\nprint(")  # begin what follows a completed function

# A fence closes at the margin or where its block began, so that one within a docstring does not.
_BLOCK = re.compile(
    r"^(?P<indent>[ \t]*)(?P<fence>`{3,}+|~{3,}+)[^\n`]*\n(?P<code>.*?)(?:^(?:(?P=indent))?(?P=fence)(?![ \t]*\w)|\Z)",
    re.DOTALL | re.MULTILINE,
)
_CODE = re.compile(
    r"^(?:(?:async[ \t]+)?def[ \t]+\w|class[ \t]+\w+[ \t]*[(:]|import[ \t]+\w|from[ \t]+[\w.]+[ \t]+import\b|@\w)",
    re.MULTILINE,
)
_FUTURE = re.compile(r"^from[ \t]+__future__[ \t]+import[ \t]+(?:\([^)]{0,500}\)|[^\n]*)\n?", re.MULTILINE)
_AT_MARGIN = re.compile(r"(?:[ \t]*\n)*\S")


def passes_tests(problem: Problem, text: str) -> bool:
    """Whether the function in a text passes the tests of its problem.

    The function is that of the last fenced block that defines it, or else that of a text which begins at the left
    margin and defines it, from its first line of code on; what the prompt has before the function, such as imports,
    precedes it. Any other text continues the prompt, up to the first of `STOP`.

    Function and tests run in sandboxes of their own (`calls.py`). Where the reference, which is right, passes only when
    both share an interpreter, as where functions are passed or returned, they do, and a warning says so.

    Raises:
        UsageError: The problem lacks a column, or there is no sandbox here (`checked_bwrap`).
    """
    parts = parts_of(problem, text)
    return _passes(parts, _must_share(problem.id, parts_of(problem, problem.reference)))


class Parts(NamedTuple):
    """What decides a grade: two modules, and what the tests know of the prompt."""

    solution: str
    preamble: str
    test: str
    name: str


def parts_of(problem: Problem, text: str) -> Parts:
    """Returns what decides the grade of a text; see `passes_tests`. UsageError: the problem lacks a column."""
    prompt, name, test = (_column(problem, column) for column in COLUMNS)
    return Parts(_module(prompt, name, text), _preamble(prompt, name), test, name)


@lru_cache(maxsize=1 << 14)
def _must_share(problem: int, reference: Parts) -> bool:
    """Whether tests and function must share an interpreter: by the reference alone, so that no text decides it."""
    must = not _passes(reference, shared=False) and _passes(reference, shared=True)
    if must:
        warnings.warn(
            f"problem {problem}: its tests and a text's function must run in one process, as values that are not plain "
            "are passed or returned; code that deliberately cheats can pass there",
            stacklevel=3,
        )
    return must


@lru_cache(maxsize=1 << 14)  # grades are asked for anew each time, and a run takes a tenth of a second
def _passes(parts: Parts, shared: bool) -> bool:
    if shared:
        return run_python(shared_program(parts)).passed
    calls = (files("fsd_calib.tasks.grading") / "calls.py").read_text(encoding="utf-8")
    tests = f"{calls}\nrun_tests(*PIPES, {parts.preamble!r}, {parts.test!r}, {parts.name!r})\n"
    return run_python(tests, beside=f"{calls}\nserve(*PIPES, {parts.solution!r}, {parts.name!r})\n").passed


def shared_program(parts: Parts) -> str:
    """Returns the program that passes if a solution is right by tests in the same interpreter.

    Each is compiled alone, so that the end of one does not change the beginning of the other.
    """
    compiled = [f"exec(compile({source!r}, {file!r}, 'exec', dont_inherit=True))\n"
                for source, file in ((parts.solution, "solution.py"), (parts.test, "tests.py"))]  # fmt: skip
    return f"{''.join(compiled)}check({parts.name})\n"


def _definition(name: str) -> re.Pattern[str]:
    return re.compile(rf"^(?:async[ \t]+)?def[ \t]+{re.escape(name)}\b", re.MULTILINE)


def _preamble(prompt: str, name: str) -> str:
    """What a prompt has before the function."""
    found = _definition(name).search(prompt)
    return prompt[: found.start()] if found else ""


def _module(prompt: str, name: str, text: str) -> str:
    text = text.replace("\r\n", "\n")
    whole = _whole(text, _definition(name))
    if whole is None:
        return prompt + text[: min((at for stop in STOP if (at := text.find(stop)) >= 0), default=None)]
    return _future_first(_preamble(prompt, name) + whole)


def _whole(text: str, definition: re.Pattern[str]) -> str | None:
    """Returns the code of a text that defines the function, or None where the text continues the prompt."""
    blocks = [code for block in _BLOCK.finditer(text) if definition.search(code := _unindented(block, definition))]
    if blocks:
        return blocks[-1]
    start = _CODE.search(text)
    if start is None or not _AT_MARGIN.match(text) or not definition.search(text, start.start()):
        return None
    return text[start.start() :]


def _unindented(block: re.Match[str], definition: re.Pattern[str]) -> str:
    """Returns a block's code without the indentation of its fence, as in a list."""
    code = re.sub(rf"^[ \t]{{0,{len(block['indent'])}}}", "", block["code"], flags=re.MULTILINE)
    return code if definition.search(code) else dedent(code)


def _future_first(module: str) -> str:
    """Imports from `__future__` must precede all other code, also that of the prompt."""
    imports = [line.rstrip("\n") + "\n" for line in _FUTURE.findall(module)]
    return "".join(imports) + _FUTURE.sub("", module)


def _column(problem: Problem, column: str) -> str:
    value = problem.row.get(column)
    if not isinstance(value, str):
        raise UsageError(
            f"problem {problem.id}: its column {column!r} is {value!r:.40}; python-tests needs a text in each of "
            f"{', '.join(COLUMNS)}"
        )
    return value
