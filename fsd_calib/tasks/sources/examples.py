"""Examples from rows: each question once, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fsd_calib.tasks.base import Example
from fsd_calib.tasks.sources.rows import Row
from fsd_common.errors import UsageError


def examples_of(rows: Iterable[Row], example: Callable[[Row], Example]) -> list[Example]:
    """Returns the examples of rows from a file.

    Raises:
        UsageError: A question, with its choices, is in two rows: it would count twice in a certificate, and the file's
            owner has to decide which one to keep.
    """
    first: dict[tuple[str, tuple[str, ...]], str] = {}
    found, repeats = [], []
    for row in rows:
        made = example(row)
        original = first.setdefault((made.question, made.choices), row.where)
        if original != row.where:
            repeats.append((row.where, original))
        found.append(made)
    if repeats:
        where, original = repeats[0]
        raise UsageError(
            f"{where}: repeats the question of {original.rpartition(', ')[2]}; each may occur once, remove the others "
            f"({len(repeats)} repeated lines in all)"
        )
    return found
