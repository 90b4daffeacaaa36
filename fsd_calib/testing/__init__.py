"""Checks of code that is not of fsd-calib: what it must do so that decoding, traces, replay and certificates hold.

Each check is a function of the name that the code is found by, and raises AssertionError with what is wrong. `check`
runs all of one kind, with or without a test framework; they take some seconds, since some decode with the bundled pair.

    from fsd_calib.testing import check

    def test_my_score():
        check("score", "mine:Skew")
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from fsd_common.addons import AddonKind
from fsd_common.errors import UsageError

__all__ = ["check", "checks_of"]


def checks_of(kind: AddonKind) -> tuple[Callable[[str], None], ...]:
    """Returns the checks of one kind, by each of which a name is checked alone; their docstrings say what must hold.

    Raises:
        UsageError: There is no such kind.
    """
    if kind not in _MODULES:
        raise UsageError(f"kind is {kind!r:.60}; it must be one of {', '.join(_MODULES)}")
    found: tuple[Callable[[str], None], ...] = import_module(f"{__name__}.{_MODULES[kind]}").CHECKS
    return found


def check(kind: AddonKind, name: str) -> None:
    """Runs all checks of one kind.

    Args:
        kind: "score", "rule", "drafter" or "stop policy".
        name: module:Name, or that of an entry point; of a score with its numbers, such as "mine:Skew@3".

    Raises:
        AssertionError: Something does not hold; the message says what.
        UsageError: There is nothing of that name, or no such kind.
    """
    for each in checks_of(kind):
        try:
            each(name)
        except AssertionError as error:
            raise AssertionError(f"{kind} {name!r}, {each.__name__}: {error}") from error


_MODULES: dict[AddonKind, str] = {
    "score": "scores",
    "rule": "rules",
    "drafter": "drafters",
    "stop policy": "stop_policies",
}
