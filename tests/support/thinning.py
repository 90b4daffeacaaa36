"""Tests of many cases, of which the fast part of the suite runs some."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def thinned(cases: Iterable[Any], every: int) -> list[Any]:
    """Returns all cases for `parametrize`, of which all but each `every`th are slow.

    Args:
        cases: such as a product of lists. Where `every` and the lengths of the lists have no common divisor, the fast
            cases take turns through all of them.
        every: 4: a fourth of the cases is fast.
    """
    listed = list(cases)
    return [case if place % every == 0 else _slow(case) for place, case in enumerate(listed)]


def _slow(case: Any) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.slow)
