"""Whether a text ends in the same mathematical expression as a reference, by math-verify."""

from __future__ import annotations

import logging
import threading
from functools import lru_cache
from importlib import import_module
from typing import Any

from fsd_calib.tasks.base import Problem
from fsd_calib.tasks.grading.phrases import last_box
from fsd_decoding.errors import UsageError

_SECONDS = 5


def same_expression(problem: Problem, text: str) -> bool:
    r"""Whether the final expressions of a text and of the reference are equal: `\boxed{\frac12}` and `0.5` are.

    The final expression is in the last box, or where there is none, the one that math-verify finds in the whole text.
    An expression that takes math-verify longer than 5 s is wrong, though it is tried again when it is asked for again.
    Outside the main thread, where math-verify has no way to stop, it may take as long as it does.

    Raises:
        UsageError: math-verify is not installed.
    """
    library = _math_verify()
    seconds = _SECONDS if threading.current_thread() is threading.main_thread() else None
    try:
        return _same(_final(problem.reference), _final(text), seconds)
    except library.errors.TimeoutException:  # and so the cache does not keep it
        return False


def _final(text: str) -> str:
    """The last box alone: math-verify would join several to one set."""
    boxed = last_box(text)
    return text if boxed is None else f"\\boxed{{{boxed}}}"


@lru_cache(maxsize=1 << 16)  # an expression takes milliseconds, and grades are asked for again and again
def _same(reference: str, text: str, seconds: int | None) -> bool:
    wanted, given = _parsed(reference, seconds), _parsed(text, seconds)
    return any(_equal(one, other, seconds) for one in wanted for other in given)


def _parsed(text: str, seconds: int | None) -> list[Any]:
    try:
        return list(_math_verify().parse(text, parsing_timeout=seconds, raise_on_error=True))
    except Exception:  # whatever its parsers raise of a text that is not mathematics; a timeout is no Exception
        return []


def _equal(one: Any, other: Any, seconds: int | None) -> bool:
    try:
        return bool(_math_verify().verify(one, other, timeout_seconds=seconds, raise_on_error=True))
    except Exception:
        return False


def _math_verify() -> Any:
    try:
        library = import_module("math_verify")
    except ImportError as error:
        raise UsageError(
            "task math: answers are compared by math-verify, which is not installed; pip install 'fsd-calib[math]'"
        ) from error
    for name in ("math_verify.grader", "math_verify.parser"):  # which warn of texts and of threads
        logging.getLogger(name).setLevel(logging.ERROR)
    return library
