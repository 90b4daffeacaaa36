"""Whether a text ends in the same mathematical expression as a reference, by math-verify.

It may take forever (`9^{9^{9^9}}`), so it runs in the graders' own process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from itertools import accumulate
from typing import Any

from fsd_calib.tasks.base import Problem
from fsd_calib.tasks.grading.apart import Apart
from fsd_calib.tasks.grading.phrases import last_box
from fsd_common.errors import UsageError

_COMPARISON = Apart(f"{__name__}:comparison")


def same_expression(problem: Problem, text: str) -> bool:
    r"""Whether the final expressions of a text and of the reference are equal: `\boxed{\frac12}` and `0.5` are.

    The final expression is in the last box, or where there is none, the one that math-verify finds in the whole text.
    One that takes math-verify longer than `Apart` allows is wrong.

    Raises:
        UsageError: math-verify is not installed.
    """
    return bool(_COMPARISON(_final(problem.reference), _final(text)))


def _final(text: str) -> str:
    """The last box alone: math-verify would join several to one set."""
    boxed = last_box(text)
    return text if boxed is None else f"\\boxed{{{boxed}}}"


def comparison() -> Callable[[str, str], bool]:
    """Returns a function that says whether the final expressions of two texts are equal.

    Raises:
        UsageError: math-verify is not installed.
    """
    try:
        library = import_module("math_verify")
    except ImportError as error:
        raise UsageError(
            "task math: answers are compared by math-verify, which is not installed; pip install 'fsd-calib[math]'"
        ) from error
    for name in ("math_verify.grader", "math_verify.parser"):  # which warn of texts
        logging.getLogger(name).setLevel(logging.ERROR)

    @lru_cache(maxsize=1 << 12)  # a reference is asked for again and again
    def parsed(text: str) -> list[Any]:
        if _depth(text) > _DEEPEST:
            return []
        try:
            return list(library.parse(text, parsing_timeout=None, raise_on_error=True))
        except _BREAKS:
            raise
        except Exception:  # whatever its parsers raise of a text that is not mathematics
            return []

    def equal(one: Any, other: Any) -> bool:
        try:
            return bool(library.verify(one, other, timeout_seconds=None, raise_on_error=True))
        except _BREAKS:
            raise
        except Exception:
            return False

    def same(reference: str, text: str) -> bool:
        return any(equal(one, other) for one in parsed(reference) for other in parsed(text))

    return same


_BREAKS = (MemoryError, RecursionError)
_DEEPEST = 50  # braces within braces; of more than some hundred its parser takes the innermost part for the whole


def _depth(text: str) -> int:
    """Returns how deep the braces of a text are nested."""
    return max(accumulate((char == "{") - (char == "}") for char in text), default=0)
