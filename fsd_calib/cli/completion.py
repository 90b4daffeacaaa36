"""Completion of option values in shells. Nothing here imports a heavy library or asks the network."""

from __future__ import annotations

from collections.abc import Callable, Iterable

Completion = Callable[[str], list[str]]
"""Returns the values that go on from what was typed."""


def one_of(values: Iterable[str]) -> Completion:
    """Returns a completion of one of the values."""
    known = tuple(values)

    def complete(incomplete: str) -> list[str]:
        return [value for value in known if value.startswith(incomplete)]

    return complete


def several_of(values: Iterable[str]) -> Completion:
    """Returns a completion of several of the values, with commas between them."""
    known = tuple(values)

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{value}" for value in known if value.startswith(last)]

    return complete


def tasks(incomplete: str) -> list[str]:
    """Returns the names of tasks, those of other packages included, and files in YAML here."""
    from pathlib import Path

    from fsd_calib.tasks.registry import task_names

    files = (str(path) for path in sorted(Path().glob("*.y*ml")))
    return [name for name in (*task_names(), *files) if name.startswith(incomplete)]
