"""Whether a text ends in the same mathematical expression as a reference, by math-verify."""

from __future__ import annotations

import logging
from functools import lru_cache
from importlib import import_module
from typing import Any

from fsd_calib.tasks.base import Problem
from fsd_decoding.errors import UsageError


def same_expression(problem: Problem, text: str) -> bool:
    r"""Whether the final expressions of a text and of the reference are equal: `\boxed{\frac12}` and `0.5` are.

    An expression that takes math-verify longer than its 5 s is wrong.

    Raises:
        UsageError: math-verify is not installed.
    """
    return _same(problem.reference, text)


@lru_cache(maxsize=1 << 16)  # an expression takes milliseconds, and grades are asked for again and again
def _same(reference: str, text: str) -> bool:
    library = _math_verify()
    wanted = library.parse(reference)
    return bool(wanted) and bool(library.verify(wanted, library.parse(text)))


def _math_verify() -> Any:
    try:
        library = import_module("math_verify")
    except ImportError as error:
        raise UsageError(
            "task math: answers are compared by math-verify, which is not installed; pip install 'fsd-calib[math]'"
        ) from error
    for name in ("math_verify.grader", "math_verify.parser"):  # which warn of every text that they cannot read
        logging.getLogger(name).setLevel(logging.ERROR)
    return library
